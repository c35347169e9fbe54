"""An operator's day on a real kubelet, for .ci/real-node.day: `real-node.day.py BATON STORY`, in the directory of the run.

A part breaks, and each question has the answers of all surfaces side by side, as soon as they name the fault. A story fails where a
surface does not name it within its documented time, says then that all is well, or names it still when it is mended.
"""
import json, os, re, shlex, signal, subprocess, sys, time

import day
from day import BATON, kubectl, ran

NODE, LOCK = "node-0", "scheduling.koordinator.sh/node-lock"
DAEMON, KUBELET, SCHEDULER = "^/usr/bin/baton-device-plugin", "^kubelet --config", "^/usr/bin/baton scheduler"
POD = "get pods {0}; explain pod {0}; page pod {0}".format
NODES, LOCKS = "get nodes; explain node; page node", "get locks; page lock; audit; page audit"
QUESTIONS = {
    "Why does the pod {} not run?": ("describe pod", "get pods", "explain pod", "page pod"),
    f"What is wrong with {NODE}?": ("describe node", "get nodes", "explain node", "page node", "doctor"),
    f"Who holds the lock of {NODE}, and what do I do?": ("get locks", "page lock", "audit", "page audit"),
}
# Beside a fault that keeps pods away, none of these may be said.
WELL = {"explain pod": "normal", "explain node": "takes new pods with devices", "page node": '"open": true', "get locks": "normal|No node",
        "audit": "no violation$", "page audit": '"no violation"', "doctor": " 0 failed"}
failed = []


def must(done, what):
    if not done:
        failed.append(what)
        print(f"FAILED: {what}", flush=True)


def process(words):
    return int(subprocess.check_output(["pgrep", "-o", "-f", words]))


def send(what, *processes):
    for words in processes:
        os.kill(process(words), what)


def shell(words):
    """In the machine's own network."""
    subprocess.run(["nsenter", "-t", "1", "-n", "bash", "-c", words], check=True)


def doctor():
    """As `kubectl exec` runs it, which the kubelet must answer: what is not ok, and the last line."""
    within = process(DAEMON)
    with open(f"/proc/{within}/environ") as file:
        env = dict(word.split("=", 1) for word in file.read().split("\0") if "=" in word)
    text = ran("env", "-u", "KUBECONFIG", "nsenter", "-t", str(within), "-m", "-n", "/usr/bin/baton", "doctor", "--host-root=/host", **env)
    lines = re.findall(r"^(?:warn|fail) .*\n(?: .*\n)*|^.*\bagent\b.*|^.* ok, .*|^\[.*", text, re.M)
    return "\n".join(line.rstrip() for line in lines) or text


def node_page(page):
    """Its row on the page Cluster, and what its own page has beside its devices."""
    detail = page.ask(f"/api/node/{NODE}")
    said = {key: detail["node"][key] for key in ("daemonFault", "lock", "agent") if detail.get("node", {}).get(key)}
    said["pods"] = {pod["pod"]: pod["word"] for pod in detail.get("pods", []) if pod.get("word")}
    return page.row("nodes", NODE) + "\n" + json.dumps(said, indent=1)


def ask(page, surface, name):
    verb, kind = (surface.split() + [""])[:2]
    if verb == "describe":
        return day.described(kind, name) + (f"\n{day.conditions(name)}" if kind == "pod" else "")
    if verb == "doctor":
        return doctor()
    if verb == "page":
        return {"pod": lambda: page.explained(name), "node": lambda: node_page(page), "lock": lambda: page.row("locks", name) or "none",
                "audit": page.audited}[kind]()
    return ran(BATON, verb, *([kind, f"default/{name}" if surface == "explain pod" else name] if kind else []))


def each(page, asked, holds, what):
    """Asks until each answer `holds` or its seconds have passed, then all once more, and prints these answers by question. `asked`:
    seconds and words by surface and name."""
    began, took, left = time.time(), {}, list(asked)
    while left:
        for key in list(left):
            good = holds(key, ask(page, *key))
            took[key] = time.time() - began
            if good or took[key] > asked[key][0]:
                left.remove(key)
        time.sleep(0.2)
    for question, surfaces in QUESTIONS.items():
        for name in dict.fromkeys(name for surface, name in asked if surface in surfaces):
            print(f"## {question.format(name)}\n")
            for key in ((surface, name) for surface in surfaces if (surface, name) in asked):
                text = ask(page, *key)
                day.show(f"{' '.join(key)}    # first after {took[key]:.0f} s, of {asked[key][0]}", text)
                must(holds(key, text), f"{' '.join(key)} {what}")


def tell(page, title, expected, well=WELL):
    """Each surface names the fault: `expected` has seconds and words by surfaces, with the pod's name if they are of a pod."""
    asked = {}
    for surfaces, facts in expected.items():
        for surface in surfaces.split("; "):
            words = surface.split()
            asked[" ".join(words[:2]), words[2] if len(words) > 2 else NODE] = facts

    def named(key, text):
        return all(re.search(word, text) for word in asked[key][1:]) and not re.search(well.get(key[0], "$^"), text, re.M)
    print(f"-- {title}\n", flush=True)
    each(page, asked, named, "does not name the fault, or says that all is well")


def runs(pod):
    must(day.runs(pod, 60), f"the pod {pod} does not run after the fault is mended: {day.state(pod)['status'].get('message')}")


def mended(page, pods, fault):
    """The pods run, and no surface names the fault. Events stay."""
    for pod in pods:
        runs(pod)
    surfaces = [(surface, name) for question, of in QUESTIONS.items() for surface in of for name in (pods if "{}" in question else [NODE])]
    print("-- it is mended\n", flush=True)
    names = lambda text: re.search(fault, text.split("\nEvents:")[0])
    each(page, {key: (45, ) for key in surfaces}, lambda key, text: not names(text), "names the fault still")
    day.gone(*pods)


def daemon(page):
    day.title(f"The node daemon of {NODE} hangs under a bind: the pod train is bound there, the daemon does not answer")
    send(signal.SIGSTOP, DAEMON)
    day.apply(day.pod("train"))
    must(day.bound("train"), "train is not bound")
    day.apply(day.pod("next"))
    tell(page, "after 15 s a lock is stuck, and within 10 s more an event says so", {
        "describe pod train": (30, "NotServed", NODE), POD("train"): (25, "stuck", "daemon"),
        "describe pod next": (15, "WaitingForNodeLock", "default/train"), POD("next"): (15, "default/train", NODE),
        "describe node": (5, "node-lock: .*train"), NODES: (25, "default/train", "stuck"), LOCKS: (25, "default/train", "stuck")})
    tell(page, "within 90 s of its last word the daemon is stale", {
        f"describe pod train; {POD('train')}; {LOCKS}": (100, "not been heard"), f"describe pod next; {POD('next')}": (100, "node daemon"),
        "explain node": (100, "not been heard"), "get nodes; page node; doctor": (100, "stale")})
    advised = re.search("`(pkill -KILL -f [^`]+)`", page.explained("train"))
    must(advised, "explain does not advise how to kill it")
    subprocess.run(shlex.split(advised[1]), check=True)
    # The kubelet refuses those that waited: their owners make others.
    decided = lambda name: day.state(name)["status"].get("phase") in ("Running", "Failed")
    must(day.until("train and next are served or refused", lambda: decided("train") and decided("next"), 150), "train and next still wait")
    day.gone("train", "next")
    must(day.until("the daemon serves", lambda: "fresh" in ran(BATON, "get", "nodes"), 150), "the daemon does not come back")
    day.apply(day.pod("again"))
    mended(page, ["again"], "stuck|not been heard|stale|WaitingForNodeLock|locked by")


def not_ready():
    """What the controller of nodes does, which does not run here: a kubelet whose Lease is 50 s old is Unknown."""
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
    kubectl("patch", "node", NODE, "--subresource=status", "-p", json.dumps({"status": {"conditions": [condition]}}))


def kubelet(page):
    day.title(f"The kubelet of {NODE} stops under a bind: the pod train is bound there")
    began, away = time.time(), f"kubelet of {NODE}"
    send(signal.SIGSTOP, KUBELET)
    day.apply(day.pod("train"))
    must(day.bound("train"), "train is not bound")
    send(signal.SIGKILL, KUBELET)
    tell(page, "the kubelet has closed its streams, and the Node is Ready still", {
        "describe pod train": (30, "NotServed", away), POD("train"): (20, away), LOCKS: (20, "default/train", away),
        "describe node": (5, "node-lock: .*train"), "get nodes; page node": (10, "unregistered"), "explain node": (10, away),
        "doctor": (10, "fail +kubelet-socket")})
    said = ran(BATON, "explain", "node", NODE, BATON_ADMIN_URL="")
    day.show("explain node    # by a port-forward to a scheduler on this node, which no kubelet answers", said)
    day.apply(day.pod("next"))
    time.sleep(max(0, began + 50 - time.time()))  # the controller's time, none of Baton's
    not_ready()
    tell(page, "the Node is not Ready", {
        f"describe pod train; {LOCKS}": (15, "not Ready"), f"{POD('train')}; explain node": (5, "not Ready"),
        "describe pod next": (5, "FailedScheduling"), POD("next"): (5, "0/1|1 node"), "describe node": (5, "Ready +Unknown"),
        "get nodes; page node": (5, "NotReady"), "doctor": (5, "fail +kubelet-socket")})
    shell("start_kubelet")
    mended(page, ["train", "next"], "stuck|not Ready|NotReady|unregistered|is away|kubelet away|locked by|fail +kubelet")


def lock(page):
    day.title(f"A lock of {NODE} is set by hand: of a pod that does not exist, which Baton takes away by itself")
    ghost = time.strftime("%Y-%m-%dT%H:%M:%SZ,default,ghost,00000000-0000-0000-0000-000000000000", time.gmtime(time.time() - 600))
    send(signal.SIGSTOP, SCHEDULER, DAEMON)  # each takes it away as soon as it sees it
    kubectl("annotate", "node", NODE, f"{LOCK}={ghost}")
    tell(page, "while scheduler and node daemon are halted", {
        "describe node; page node; audit; page audit": (20, "default.ghost"), "get nodes; get locks; page lock": (20, "dangling")}, {})
    send(signal.SIGCONT, SCHEDULER, DAEMON)
    day.apply(day.pod("passes"))
    mended(page, ["passes"], "ghost|dangling|locked by")
    day.title(f"A lock of {NODE} is set by hand: a value that is no lock")
    kubectl("annotate", "node", NODE, f"{LOCK}=mine")
    day.apply(day.pod("waits"))
    tell(page, "no pod holds it, and one waits", {
        "describe pod waits": (15, "WaitingForNodeLock", "mine"), POD("waits"): (15, "mine", NODE), "describe node": (5, "node-lock: mine"),
        f"{NODES}; {LOCKS}": (5, "mine")})
    said = re.search(rf"kubectl annotate node {NODE} {LOCK}- --resource-version=\d+", ran(BATON, "get", "locks", NODE, "-o", "json"))
    must(said, "get locks does not say how to remove the lock")
    command = said[0]
    day.show(command, ran(*command.split()))
    mended(page, ["waits"], "mine|malformed|WaitingForNodeLock|locked by")


if __name__ == "__main__":
    shown, story = day.Page(), sys.argv[2]
    try:
        globals()[story](shown)
    finally:
        shown.server.terminate()
    print(f"FAILED: {story}: {len(failed)}" if failed else f"ok: {story}: each surface names the fault, and none afterwards", flush=True)
    sys.exit(1 if failed else 0)
