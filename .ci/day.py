#!/usr/bin/env python3
"""An operator's day on a kept demo: one thing breaks after the other, and what every surface says of it is written side by side, to be
read by people.

`.ci/day.py BATON [CHAPTER...] > day.txt`, with kubectl on the PATH: starts `BATON demo --keep`, plays, ends it. With KUBECONFIG of a kept
demo it plays there. With that of another cluster it plays the chapters that need no virtual hardware: pods run IMAGE, the daemon of a node
is stopped by its label, and ON_NODE (`docker exec NODE`, say) runs what stops a kubelet or halts a daemon.
"""
import fcntl, json, os, pty, re, shlex, signal, struct, subprocess, sys, tempfile, termios, threading, time, traceback, urllib.request

BATON, HOME = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
LIMIT = float(os.environ.get("WITHIN", "180"))
IMAGE, ON_NODE = os.environ.get("IMAGE", "i"), os.environ.get("ON_NODE")


def ran(*words, given=None, **env):
    done = subprocess.run(words, input=given, capture_output=True, text=True, env=os.environ | {"HOME": HOME} | env)
    return (done.stdout + done.stderr).rstrip() + (f"\n[exit code {done.returncode}]" if done.returncode else "")


def show(words, text):
    print(f"$ {words}\n" + "".join(f"    {line}\n" for line in text.splitlines()), flush=True)


def baton(line, given=None, **env):
    show(f"baton {line}", ran(BATON, *line.split(" "), given=given, **env))


def narrow(columns, line):
    """As on a terminal of so many columns."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    done = subprocess.Popen([BATON, *line.split(" ")], stdout=child, stderr=child, env=os.environ | {"NO_COLOR": "1"})
    os.close(child)
    text = b""
    try:
        while part := os.read(parent, 65536):
            text += part
    except OSError:
        pass
    done.wait()
    show(f"baton {line}    # {columns} columns", text.decode().replace("\r\n", "\n"))


def kubectl(*words, given=None):
    return ran("kubectl", *words, given=given)


def items(*words):
    return json.loads(kubectl("get", *words, "-o", "json"))["items"]


def apply(*objects):
    said = kubectl("apply", "--validate=false", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    if "exit code" in said:
        raise RuntimeError(said)


def pod(name, gpus=1, node=None, scheduler="baton-scheduler", gang=None, priority=None):
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if priority is not None:
        spec["priority"] = priority
    own = "gang.scheduling.koordinator.sh/"
    annotations = {own + "name": gang[0], own + "min-available": str(gang[1])} if gang else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": spec}


def state(name):
    return json.loads(kubectl("get", "pod", name, "-o", "json"))


def until(what, holds, within=LIMIT):
    end = time.time() + within
    while not holds():
        if time.time() > end:
            return print(f"!! not within {within:.0f} s: {what}", flush=True)
        time.sleep(0.2)
    return True


def bound(name):
    return until(f"{name} is bound", lambda: state(name)["spec"].get("nodeName"))


def runs(name, within=LIMIT):
    return until(f"{name} runs", lambda: state(name)["status"].get("phase") == "Running", within)


def gone(*names):
    kubectl("delete", "pod", *names, "--wait=false", "--grace-period=1")
    until(f"{names} are gone", lambda: not {p["metadata"]["name"] for p in items("pods")} & set(names))


def is_demo():
    return os.path.exists(f"{os.path.dirname(os.environ['KUBECONFIG'])}/node-1.pid")


def on_node(node, line):
    show(f"on {node}: {line}", ran(*shlex.split(ON_NODE.replace("NODE", node)), *line.split(" ")))


def fault(line):
    if not is_demo():
        node, part, *what = line.split(" ")
        if part == "daemon":
            label = "baton.io/device-plugin=off" if what == ["stop"] else "baton.io/device-plugin-"
            return show(f"kubectl label node {node} {label}", kubectl("label", "node", node, label))
        if part == "kubelet":
            return on_node(node, f"systemctl {what[0]} kubelet")
        value = time.strftime("%Y-%m-%dT%H:%M:%SZ,default,nobody,", time.gmtime()) + "00000000-0000-0000-0000-000000000000"
        return show(line, kubectl("annotate", "node", node, f"scheduling.koordinator.sh/node-lock={value}"))
    show(f"baton demo fault {line}", ran(BATON, "demo", "fault", *line.split(" ")))


def locked(node, seconds):
    """Until the lock of the node is so old."""
    def old():
        rows = json.loads(ran(BATON, "get", "locks", "-o", "json"))["items"]
        return any(row["node"] == node and row["ageSeconds"] >= seconds for row in rows)
    until(f"the lock of {node} is {seconds} s old", old)


def roomy():
    """The node with the most GPUs free."""
    return max(json.loads(ran(BATON, "get", "nodes", "-o", "json"))["items"], key=lambda row: row["gpu"]["free"])["name"]


def drain(pipe):
    """Reads what a program prints later, so that it never waits for a reader; the last of it is kept."""
    last = []
    threading.Thread(target=lambda: [last.append(line) or last.__delitem__(slice(0, -20)) for line in pipe], daemon=True).start()
    return last


PAGE_NOTES = ("leasesUnread", "slicesUnread", "leaving", "stuck", "unserved", "unhealthy", "unreadable", "otherScheduler", "visibleDevices")


class Page:
    """`baton ui`, and what its pages show."""

    def __init__(self):
        self.server = subprocess.Popen([BATON, "ui"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = next(line for line in self.server.stdout if "token=" in line)
        drain(self.server.stdout)
        self.at, token = re.search(r"(http://[^/]*)/\?token=(\w+)", line).groups()
        self.cookie = f"baton-ui-{self.at.rsplit(':', 1)[1]}={token}"

    def get(self, path):
        return urllib.request.urlopen(urllib.request.Request(self.at + path, headers={"Cookie": self.cookie}), timeout=60)

    def rows(self):
        with self.get("/api/stream") as stream:
            for line in stream:
                if line.startswith(b"data: ") and b'"rows"' in line:
                    return json.loads(line[6:])["rows"]

    def ask(self, path):
        try:
            return json.load(self.get(path))
        except urllib.error.HTTPError as error:
            return {"message": error.read().decode()}

    def row(self, kind, name, rows=None):
        row = (rows or self.rows()).get(kind, {}).get(name) or {}
        return json.dumps({key: row[key] for key in row if key not in ("devices", "created")}, indent=1) if row else ""

    def explained(self, pod):
        verdict = self.ask(f"/api/pod/default/{pod}")
        said = {key: verdict.get(key) for key in ("state", "message", "nearest", "oneMove", "room", "advice")}
        said["faults"] = {row["device"]: row["problem"] for row in verdict.get("held", []) if row.get("problem")}
        return json.dumps({key: said[key] for key in said if said[key]}, indent=1)

    def audited(self):
        found = self.ask("/api/audit")
        return json.dumps({key: found[key] for key in found if key in ("violations", "outcome") or key in PAGE_NOTES and found[key]}, indent=1)

    def show(self, pod, node, gang=None):
        rows = self.rows()
        for kind, name in (("nodes", node), ("locks", node), ("gangs", f"default/{gang}"), ("queue", f"default/{pod}")):
            row = self.row(kind, name, rows)
            if row:
                show(f"page: {kind[:-1]} {name}", row)
        for name, row in rows.get("problems", {}).items():
            show(f"page: problem {name}", json.dumps(row, indent=1))
        if pod:
            show(f"page: explain pod {pod}", self.explained(pod))
        show("page: audit", self.audited())


def events(kind, name):
    found = [e for e in items("events", "-A") if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == (kind, name)]
    lines = [f"{e['type']} {e.get('reason')}: {e.get('message')}" for e in found]
    show(f"events of {kind} {name}", "\n".join(lines) or "none")


def described(kind, name):
    """Status, conditions and events of `kubectl describe`; of a node also its lock."""
    parts = r"^(?:Status|Node):.*|^.*node-lock: .*|^Conditions:\n(?:  .*\n)+|^Events:(?:.*\n?)(?:  .*\n?)*"
    return "\n".join(part.rstrip() for part in re.findall(parts, kubectl("describe", kind, name), re.M))


def conditions(name):
    said = [c for c in state(name)["status"].get("conditions", []) if c.get("message")]
    return "\n".join(f"{c['type']}={c['status']} {c.get('reason')}: {c['message']}" for c in said) or "none"


def sides(page, name, node, gang=None):
    """What every surface says of a pod and of the node."""
    if name:
        show(f"kubectl describe pod {name}    # status, conditions, events", described("pod", name))
        show(f"conditions of pod {name}", conditions(name))
        baton(f"get pods {name} -n default")
        baton(f"explain pod default/{name}")
    if gang:
        baton(f"get gangs {gang} -n default")
        baton(f"explain gang default/{gang}")
    if node:
        baton("get nodes")
        baton("get locks")
        baton(f"explain node {node}")
        events("Node", node)
    baton("audit")
    page.show(name, node, gang)


def title(text):
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}\n", flush=True)


def signalled(folder, node, what):
    if not is_demo():
        return on_node(node, f"pkill -{what.name[3:]} baton-device")
    os.kill(int(open(f"{folder}/{node}.pid").read()), what)


def calm(page, folder):
    title("A calm cluster")
    for line in ("get nodes", "get devices", "get pods -A", "get namespaces", "audit", "explain pod default/gpu-rdma"):
        baton(line)


def daemon(page, folder):
    node = roomy()
    title(f"The node daemon of {node} hangs under a bind: the pod train is bound there, the daemon does not answer")
    signalled(folder, node, signal.SIGSTOP)
    apply(pod("train", node=node))
    bound("train")
    for age in (5, 20, 90):
        locked(node, age)
        print(f"-- after {age} s", flush=True)
        sides(page, "train", node)
    signalled(folder, node, signal.SIGCONT)
    runs("train")
    print("-- the daemon goes on", flush=True)
    sides(page, "train", node)
    title(f"The node daemon of {node} is stopped, and a pod is pinned to it")
    fault(f"{node} daemon stop")
    apply(pod("pinned", node=node))
    until("the pod was tried", lambda: state("pinned")["status"].get("conditions"))
    sides(page, "pinned", node)
    fault(f"{node} daemon start")
    runs("pinned")
    gone("train", "pinned")


def kubelet(page, folder):
    node = roomy()
    title(f"The kubelet of {node} stops under a bind")
    signalled(folder, node, signal.SIGSTOP)
    apply(pod("train", node=node))
    bound("train")
    fault(f"{node} kubelet stop")
    signalled(folder, node, signal.SIGCONT)
    for age in (5, 20, 90):
        locked(node, age)
        print(f"-- after {age} s", flush=True)
        sides(page, "train", node)
    fault(f"{node} kubelet start")
    runs("train")
    gone("train")


def lock(page, folder):
    title("A lock is set by hand: of a pod that does not exist, which the scheduler removes, and a value that is no lock")
    node = roomy()
    fault(f"{node} lock")
    baton("get locks")
    apply(pod("passes", node=node))
    runs("passes")
    kubectl("annotate", "node", node, "scheduling.koordinator.sh/node-lock=mine", "--overwrite")
    apply(pod("locked", node=node))
    until("the pod says that it waits", lambda: "Lock" in json.dumps(state("locked")["status"].get("conditions")))
    sides(page, "locked", node)
    kubectl("annotate", "node", node, "scheduling.koordinator.sh/node-lock-")
    runs("locked")
    gone("locked", "passes")


def xid(page, folder):
    title("XIDs under running pods: 79 (the hardware's) of a GPU of gpu-rdma, 31 (an application's) of that of one-gpu")
    for name, number in (("gpu-rdma", 79), ("one-gpu", 31)):
        rows = json.loads(ran(BATON, "get", "devices", "-o", "json"))["items"]
        row = next(row for row in rows if f"\"{name}\"" in json.dumps(row["holders"]).replace("default/", "") and row["device"].startswith("gpu-"))
        fault(f"{row['node']}/{row['device']} xid {number}")
        time.sleep(4)
        baton(f"get devices --node {row['node']} --state unhealthy -o wide")
        sides(page, name, row["node"])


def gang(page, folder):
    title("A gang that is short by one: three of four members exist")
    apply(*(pod(f"short-{n}", 1, gang=("short", 4)) for n in range(3)))
    time.sleep(5)
    sides(page, "short-0", None, "short")
    apply(pod("short-3", 1, gang=("short", 4)))
    runs("short-0")
    baton("get gangs -n default")
    baton("explain gang default/short")
    gone(*(f"short-{n}" for n in range(4)))
    title("A gang that is short of room: four members of six GPUs")
    apply(*(pod(f"wide-{n}", 6, gang=("wide", 4)) for n in range(4)))
    time.sleep(8)
    baton("get nodes")
    baton("get queue")
    sides(page, "wide-3", None, "wide")
    gone(*(f"wide-{n}" for n in range(4)))


def pinned(page, folder):
    title("A pod that is pinned to a node which lacks room, and one to a node that does not exist")
    node = roomy()
    apply(pod("full", 8, node=node), pod("nowhere", 1, node="node-9"))
    time.sleep(5)
    sides(page, "full", node)
    sides(page, "nowhere", None)
    gone("full", "nowhere")


def namespace(page, folder):
    title("Baton is in a namespace of another name than the one that is asked")
    for line in ("get nodes", "get pods -A", "explain pod default/one-gpu", "audit", "doctor --conditions"):
        baton(f"{line} --baton-namespace gpu-system" if line != "doctor --conditions" else "get locks --baton-namespace gpu-system")


def columns(page, folder):
    title("Narrow terminals and names of a cloud's nodes")
    name = "ip-10-0-131-207.eu-central-1.compute.internal"
    node, device = (json.loads(kubectl("get", kind, "node-1", "-o", "json")) for kind in ("node", "device"))
    for thing in (node, device):
        thing["metadata"] = {"name": name, "labels": thing["metadata"].get("labels", {}) | {"kubernetes.io/hostname": name}}
    device["spec"]["devices"][1].update(health=False)
    apply(device, {key: value for key, value in node.items() if key != "status"})
    for line in ("get nodes", "get devices --node " + name, "get pods -A", "get locks", "get queue", "explain node " + name):
        for width in (60, 80):
            narrow(width, line)
    kubectl("delete", "node,device", name)


def foreign(page, folder):
    title("A pod of another scheduler")
    apply(pod("theirs", 1, scheduler="default-scheduler"))
    until("Baton says so", lambda: any(e.get("reason") == "NotScheduledByBaton" for e in items("events", "-n", "default")))
    sides(page, "theirs", None)
    gone("theirs")


def documents(page, folder):
    title("What would happen: a file with five documents")
    template = {"spec": pod("x", 2)["spec"]}
    labels = {"app": "web"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"parallelism": 2, "template": template}}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}} | template}}
    sets = [{"name": "actor", "counts": 2, "template": template}]
    own = {"apiVersion": "arranger.taichu.io/v1alpha1", "kind": "TYJob", "metadata": {"name": "rl"}, "spec": {
        "minWorkersNum": 2, "leader": {"name": "learner", "template": template}, "workerSets": sets}}
    members = {"apiVersion": "v1", "kind": "List", "items": [pod(f"g-{n}", 8, gang=("g", 8)) for n in range(8)]}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("\n---\n".join(map(json.dumps, (pod("one", 1), job, web, own, members))))
        file.flush()
        baton(f"explain --what-if -f {file.name}")
    baton("explain --what-if -f -", given=json.dumps(pod("important", 8, priority=1000)))
    baton("explain --what-if -f -", given=json.dumps(pod("huge", 16)))
    baton("explain --what-if -f -", given="apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: two}}}]}\n")


def rights(page, folder):
    title("A user without rights")
    kubectl("create", "serviceaccount", "guest", "-n", "default")
    token = kubectl("create", "token", "guest", "-n", "default")
    config = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    for user in config["users"]:
        user["user"] = {"token": token}
    path = f"{HOME}/guest.json"
    with open(path, "w") as file:
        json.dump(config, file)
    for line in ("get nodes", "get pods -n default", "get devices", "get locks", "explain pod default/one-gpu", "explain node node-1", "audit",
                 "cordon node-1/gpu-3 --reason fan"):
        baton(line, KUBECONFIG=path)


CHAPTERS = [calm, daemon, kubelet, lock, gang, pinned, foreign, documents, namespace, columns, rights, xid]
ANYWHERE = [lock, gang, pinned, foreign, documents] + ([daemon, kubelet] if ON_NODE else [])


def main():
    demo, said = None, []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("!! ended by SIGTERM"))
    if "KUBECONFIG" not in os.environ:
        demo = subprocess.Popen([BATON, "demo", "--keep"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = iter(demo.stdout.readline, "")
        found = next((line for line in lines if "export KUBECONFIG=" in line), None) or sys.exit("the demo ended early")
        os.environ["KUBECONFIG"] = found.strip().split("=", 1)[1]
        next(line for line in lines if "kubectl get pods -w" in line)
        said = drain(demo.stdout)
    page = Page()
    try:
        for chapter in [c for c in (CHAPTERS if is_demo() else ANYWHERE) if not sys.argv[2:] or c.__name__ in sys.argv[2:]]:
            try:
                chapter(page, os.path.dirname(os.environ["KUBECONFIG"]))
            except Exception as error:
                print(f"!! the chapter {chapter.__name__} ends early: {error!r}\n{traceback.format_exc()}", flush=True)
                ended = [what for what, of in (("the page", page.server), ("the demo", demo)) if of and of.poll() is not None]
                if ended:
                    sys.exit(f"!! ended: {', '.join(ended)} {''.join(said)}")
        print("-- the day is over", flush=True)
    finally:
        page.server.terminate()
        if demo:
            demo.send_signal(signal.SIGINT)
            demo.wait()


if __name__ == "__main__":
    main()
