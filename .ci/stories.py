#!/usr/bin/env python3
"""Stories on a cluster whose GPU nodes are alike and free of GPU pods, such as `baton demo --keep`: who waits longest goes first, and
restarts count once.

`.ci/stories.py 20 [STORY...]`, with kubectl's KUBECONFIG: how often each story ends as it must, every second time beside a change of a
node each second. IMAGE (busybox) must have busybox. In (refused) the API server denies the first pod's Bindings, and YOUNGER (1,000)
pods behind it run to their ends. KILL is a command that kills the job controller in the middle of (restarts).
"""
import json, os, subprocess, sys, threading, time

IMAGE, YOUNGER = os.environ.get("IMAGE", "busybox"), int(os.environ.get("YOUNGER", "1000"))
WITHIN = int(os.environ.get("WITHIN", "60"))


def kubectl(*words, given=None, check=True):
    ran = subprocess.run(["kubectl", *words], input=given, capture_output=True, text=True)
    if check and ran.returncode:
        sys.exit(f"kubectl {words}: {ran.stderr}")
    return ran.stdout


def create(items):
    kubectl("create", "--validate=false", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def container(gpus, command="exec busybox sleep 3600"):
    limits = {"koordinator.sh/gpu": gpus[:-1]} if str(gpus).endswith("%") else {"nvidia.com/gpu": str(gpus)}
    return {"name": "main", "image": IMAGE, "command": ["busybox", "sh", "-c", command], "resources": {"limits": limits}}


def pod(name, gpus, annotations={}, priority=None, command="exec busybox sleep 3600"):
    spec = {"schedulerName": "baton-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False, "containers": [container(gpus, command)]}
    if priority:
        spec["priorityClassName"] = priority
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def gang(name, members, gpus, priority=None):
    own = "gang.scheduling.koordinator.sh/"
    return [pod(f"{name}-{n}", gpus, {own + "name": name, own + "min-available": str(members)}, priority) for n in range(members)]


def job(name, workers, gpus):
    template = {"spec": {"containers": [container(gpus)]}}
    sets = [{"name": "actor", "counts": workers, "template": template}]
    spec = {"minWorkersNum": workers, "leader": {"name": "learner", "template": template}, "workerSets": sets}
    return [{"apiVersion": "arranger.taichu.io/v1alpha1", "kind": "TYJob", "metadata": {"name": name}, "spec": spec}]


def pods():
    return {p["metadata"]["name"]: p for p in json.loads(kubectl("get", "pods", "-o", "json"))["items"]}


def bound():
    return {name for name, p in pods().items() if p["spec"].get("nodeName")}


def until(what, asked, within=WITHIN):
    end = time.time() + within
    while not asked():
        if time.time() > end:
            return print(f"  not within {within} s: {what}", flush=True)
        time.sleep(0.1)
    return True


def clean():
    kubectl("delete", "tyjobs", "--all", "--wait=false", check=False)
    kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=1")
    until("all pods are gone", lambda: not pods())


def nodes():
    items = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    return [n["metadata"]["name"] for n in items if n["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") == "8"]


def story(first, second, go, stay):
    full = [f"fill-{n}" for n in range(len(nodes()))]
    create([pod(name, 8) for name in full])
    good = until("the nodes are full", lambda: bound() >= set(full))
    create(first)
    time.sleep(1.2)  # times of creation have whole seconds
    create(second)
    time.sleep(1)
    kubectl("delete", "pod", "fill-0", "--wait=false")
    good = until(f"{go} bound", lambda: bound() >= set(go)) and good
    time.sleep(1)
    early = bound() & set(stay)
    if early:
        print(f"  too early: {early}", flush=True)
    return good and not early


def refused():
    """A head that fails for another cause than room holds back no other pod, and is bound when it can be."""
    rule = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}]}
    policy = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no-head"},
              "spec": {"failurePolicy": "Fail", "matchConstraints": rule, "validations": [{"expression": "object.metadata.name != 'head'"}]}}
    binding = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "no-head"},
               "spec": {"policyName": "no-head", "validationActions": ["Deny"]}}
    create([policy, binding])
    time.sleep(3)
    create([pod("head", "25%")])
    until("the head is refused", lambda: "denied" in kubectl("get", "events", "-o", "json", "--field-selector=involvedObject.name=head"), 20)
    began, younger = time.time(), [pod(f"younger-{n:04}", "25%", command=":") for n in range(YOUNGER)]
    for at in range(0, YOUNGER, 100):
        create(younger[at:at + 100])
    ended = lambda: sum(p["status"].get("phase") == "Succeeded" for p in pods().values()) >= YOUNGER
    good = until("all younger pods ran", ended, WITHIN + YOUNGER)
    waits = "head" not in bound()
    print(f"  {YOUNGER} younger pods ran in {time.time() - began:.0f} s", flush=True)
    kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "no-head")
    return until("the head is bound", lambda: "head" in bound(), 2 * WITHIN) and good and waits


def restarts():
    """Whichever part of a job crashes, under whichever policy: the job fails beyond its limit, and the other part counts nothing."""
    def template(policy, command):
        main = {"name": "main", "image": IMAGE, "command": ["busybox", "sh", "-c", command]}
        return {"spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 0, "containers": [main]}}
    cases = [(part, policy) for part in ("leader", "worker") for policy in ("Never", "OnFailure", "Always") if (part, policy) != ("leader", "Always")]
    items = []
    for part, policy in cases:
        idle, crash = template("Never", "exec busybox sleep 3600"), template(policy, "busybox sleep 1; exit 1")
        leader, actor = (crash, idle) if part == "leader" else (idle, crash)
        spec = {"restartLimit": 2, "minWorkersNum": 1, "leader": {"name": "learner", "template": leader},
                "workerSets": [{"name": "actor", "counts": 1, "template": actor}]}
        name = f"{part}-{policy.lower()}"
        items.append({"apiVersion": "arranger.taichu.io/v1alpha1", "kind": "TYJob", "metadata": {"name": name}, "spec": spec})
    create(items)
    if os.environ.get("KILL"):
        time.sleep(5)
        subprocess.run(os.environ["KILL"], shell=True)
    jobs = lambda: {j["metadata"]["name"]: j.get("status", {}) for j in json.loads(kubectl("get", "tyjobs", "-o", "json"))["items"]}
    good = until("all jobs failed", lambda: all(s.get("stage") == "Failed" for s in jobs().values()), 3 * WITHIN)
    for (part, policy), status in zip(cases, (jobs()[f"{part}-{policy.lower()}"] for part, policy in cases)):
        own, other = status.get("restarts", 0), status.get("workerSetRestarts", {}).get("actor", 0)
        own, other = (own, other) if part == "leader" else (other, own)
        print(f"  {part} {policy}: {own} restarts, {other} of the other part: {status.get('message')}", flush=True)
        # A controller that is away finds one more.
        good = good and own in (2, 3) and other == 0 and "restartLimit" in status.get("message", "")
    return good


BOTH, OTHERS = ["g-0", "g-1"], ["j-learner", "j-actor-0"]
STORIES = {
    "gang-pod": lambda: story(gang("g", 2, 4), [pod("young", 8)], BOTH, ["young"]),
    "important": lambda: story(gang("g", 2, 4, "stories-never"), [pod("low", 8)], BOTH, ["low"]),
    "gang-job": lambda: story(gang("g", 2, 4), job("j", 1, 4), BOTH, OTHERS),
    "pod-gang": lambda: story([pod("old", 8)], gang("g", 2, 4), ["old"], BOTH),
    "job-gang": lambda: story(job("j", 1, 4), gang("g", 2, 4), OTHERS, BOTH),
    "refused": refused,
    "restarts": restarts,
}


def change_nodes(stop):
    while not stop.wait(1):
        kubectl("annotate", "node", nodes()[0], f"turn={time.time()}", "--overwrite", check=False)


def main():
    times, chosen = int(sys.argv[1]), sys.argv[2:] or [name for name in STORIES if name not in ("refused", "restarts")]
    never = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "stories-never"}, "value": 1000}
    kubectl("apply", "-f", "-", given=json.dumps(never | {"preemptionPolicy": "Never"}))
    clean()
    missed = 0
    for name in chosen:
        good = 0
        for turn in range(times):
            stop = threading.Event()
            changes = threading.Thread(target=change_nodes, args=[stop])
            if turn % 2:
                changes.start()
            good += bool(STORIES[name]())
            stop.set()
            if turn % 2:
                changes.join()
            clean()
        missed += times - good
        print(f"{'ok' if good == times else 'FAILED'}: {name}: {good} of {times}", flush=True)
    sys.exit(missed > 0)


main()
