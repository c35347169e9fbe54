"""What .ci/real-node.force and .ci/real-node.starts do over the API, and how they judge: `real-node.force.py WORD ...`, in the directory
of the run, which has the API server's credentials, `log/containers` (of real-node.sampler.c) and `log/events` (of the word `record`)."""
import http.client, json, os, random, re, ssl, sys, threading, time

PODS = "/api/v1/namespaces/default/pods"
_connections = threading.local()


def api(method, path, body=None, kind="application/json"):
    for attempt in (1, 2):
        if not getattr(_connections, "one", None):
            context = ssl.create_default_context(cafile="node/pki/ca.crt")
            context.load_cert_chain("node/pki/admin.crt", "node/pki/admin.key")
            _connections.one = http.client.HTTPSConnection("10.0.0.1", context=context)
        try:
            _connections.one.request(method, path, body and json.dumps(body), {"Content-Type": kind})
            response = _connections.one.getresponse()
            if "watch=1" in path:
                return response
            return json.loads(response.read())
        except (http.client.HTTPException, OSError):
            _connections.one = None
            if attempt == 2:
                raise


def create(name, what, stop="12", command=None, annotations=None, **more):
    """A pod of so many GPUs, of `N%` of one, or of none; it stops in `stop` seconds."""
    percent = what.endswith("%") and what[:-1]
    limits = {} if what == "0" else {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent} if percent else {"nvidia.com/gpu": what}
    command = command or f"trap 'busybox sleep {stop}; exit 0' TERM; while :; do busybox sleep 1 & wait; done"
    container = {
        "name": "main", "image": "localhost/shell:1", "command": ["/bin/bash", "-c", command], "resources": {"limits": limits},
        "env": [{"name": "SHARE", "value": percent or "100"}]}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": "baton-scheduler", "restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container], **more}}
    answer = api("POST", PODS, pod)
    if answer["kind"] != "Pod":
        print(f"pod {name}: {answer['message']}")
    return answer


def delete(name, grace):
    api("DELETE", f"{PODS}/{name}", {"kind": "DeleteOptions", "apiVersion": "v1", **({} if grace is None else {"gracePeriodSeconds": grace})})


def replace(first, name):
    """Force-deletes a pod of 8 GPUs and binds another by hand to the same devices, as a scheduler would that takes the first for gone."""
    annotations = {k: v for k, v in api("GET", f"{PODS}/{first}")["metadata"]["annotations"].items() if "koordinator" in k}
    create(name, "8", "0", schedulerName="by-hand")
    delete(first, 0)
    bound = api("POST", f"{PODS}/{name}/binding", {
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": annotations}, "target": {"kind": "Node", "name": "node-0"}})
    if bound.get("status") != "Success":
        print(f"{name} is not bound: {bound}")


# What happened.


def record():
    """Every event of pods and of the node daemons' Leases, with the time at which it came."""
    out, lock = open("log/events", "a", buffering=1), threading.Lock()

    def watch(path, facts):
        version = ""
        while True:
            try:
                for line in api("GET", f"{path}?watch=1&timeoutSeconds=3600&resourceVersion={version}"):
                    at, event = time.time_ns(), json.loads(line)
                    if event["type"] == "ERROR":
                        version = ""
                        break
                    meta = event["object"]["metadata"]
                    version = meta["resourceVersion"]
                    fact = {"t": at, "type": event["type"], "name": meta["name"], "rv": version, **facts(event["object"])}
                    with lock:
                        out.write(json.dumps(fact) + "\n")
            except (http.client.HTTPException, OSError, ValueError):
                time.sleep(0.1)
            _connections.one = None

    def pod(it):
        states = it["status"].get("containerStatuses", [])
        waiting = [s["state"]["waiting"] for s in states if "waiting" in s.get("state", {})]
        return {
            "kind": "pod", "uid": it["metadata"]["uid"], "node": it["spec"].get("nodeName"), "phase": it["status"].get("phase"), "reason": it["status"].get("reason"),
            "message": it["status"].get("message"), "deleting": "deletionTimestamp" in it["metadata"], "running": sum("running" in s.get("state", {}) for s in states),
            "waiting": waiting and waiting[0]}

    def lease(it):
        return {"kind": "lease", "says": it["metadata"].get("annotations"), "renewed": it["spec"].get("renewTime")}

    leases = "/apis/coordination.k8s.io/v1/namespaces/baton-system-nodes/leases"
    threading.Thread(target=watch, args=(leases, lease), daemon=True).start()
    watch(PODS, pod)


def events(kind, since=0):
    with open("log/events") as file:
        return [e for e in map(json.loads, (line for line in file if line.endswith("}\n"))) if e["kind"] == kind and e["t"] >= since]


def containers():
    all_ = {}
    with open("log/containers") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            word, at, *rest = line.split()
            if word == "+":
                seen, uid, id_, name, share, devices = rest
                all_[id_] = {
                    "before": int(at), "seen": int(seen), "uid": uid, "name": name, "share": int(share), "runs": None, "end": None,
                    "devices": [] if devices == "-" else devices.split(",")}
            elif rest[0] in all_:
                all_[rest[0]]["runs" if word == "x" else "end"] = int(at)
    return list(all_.values())


def overlaps(since, begin="seen"):
    """[(names, device, ns)]: two pods that have one device at once, more of it than there is."""
    found, now = [], time.time_ns()
    everything = containers()
    for device in sorted({d for c in everything for d in c["devices"]}):
        its = [c for c in everything if device in c["devices"] and (c["end"] or now) >= since]
        times = sorted({t for c in its for t in (c[begin], c["end"] or now) if t >= since} | {since})
        before = None
        for at, until in zip(times, times[1:]):
            here = {c["uid"]: c for c in its if c[begin] <= at and (c["end"] or now) >= until}
            if len(here) < 2 or sum(c["share"] for c in here.values()) <= 100:
                before = None
                continue
            names = "+".join(sorted(c["name"] for c in here.values()))
            if before == names:
                found[-1][2] += until - at
            else:
                found.append([names, device, until - at])
            before = names
    return found


def told(found):
    pairs = {}
    for names, device, length in found:
        pairs.setdefault(names, []).append((length, device))
    worst = sorted(pairs.items(), key=lambda pair: -max(pair[1])[0])
    return f"{sum(o[2] for o in found) / 1e9:.3f} device-seconds: " + "; ".join(
        f"{names} {len({device for _, device in its})} devices, {max(its)[0] / 1e9:.3f} s" for names, its in worst[:3]) + (f"; and {len(worst) - 3} more" if len(worst) > 3 else "")


def refused(since):
    return sorted({f"{e['name']}: {e['reason']}" for e in events("pod", since) if e["phase"] == "Failed" and re.match("UnexpectedAdmission|OutOf|Admission", e["reason"] or "")})


def successions(since):
    """[(ms, first, successor)]: a container's program begins so long after the last end on its devices, where its pod was there before that."""
    everything, found = containers(), []
    created = {e["uid"]: e["t"] for e in reversed(events("pod"))}
    for c in everything:
        if c["seen"] < since or not c["devices"] or not c["runs"]:
            continue
        before = [o for o in everything if o["uid"] != c["uid"] and o["seen"] < c["seen"] and set(o["devices"]) & set(c["devices"]) and o["share"] + c["share"] > 100]
        if before and all(o["end"] for o in before):
            last = max(before, key=lambda o: o["end"])
            if created.get(c["uid"], c["seen"]) < last["end"]:
                found.append(((c["runs"] - last["end"]) / 1e6, last["name"], c["name"]))
    return found


def spread(numbers, unit="ms"):
    ordered = sorted(numbers)
    if not ordered:
        return "none"
    at = lambda part: ordered[min(len(ordered) - 1, int(part * len(ordered)))]
    return f"n={len(ordered)} p50={at(0.5):.0f} p99={at(0.99):.0f} max={ordered[-1]:.0f} {unit}"


def lease_writes(since):
    """Writes of the node daemon's Lease: all, and those that say something else than the one before."""
    before, all_, other = None, 0, 0
    for e in events("lease"):
        if e["t"] >= since:
            all_ += 1
            other += before is not None and e["says"] != before
        before = e["says"]
    return all_, other


def verdict(text, since, *figures, bad=()):
    found, no = overlaps(since), refused(since)
    bad = list(bad) + ([f"{len(found)} overlaps ({told(found)})"] if found else []) + ([f"failed admissions: {', '.join(no)}"] if no else [])
    all_, other = lease_writes(since)
    possible = len(overlaps(since, "before")) - len(found)
    figures = [f for f in figures if f] + [f"Lease writes {all_}, {other} with other words"] + ([f"{possible} overlaps within the sampler's period"] if possible > 0 else [])
    print(f"{'FAILED' if bad else 'ok'}: {text}: {'; '.join(bad) or 'no device in two pods'} [{'; '.join(figures)}]", flush=True)
    sys.exit(1 if bad else 0)


def judge(text, since, first, successor):
    """One pod after another."""
    since, bad, figures = int(since), [], []
    its = lambda name: [c for c in containers() if c["name"] == name and c["seen"] >= since]
    if not its(first) or not its(successor):
        bad.append(f"no container of {first if not its(first) else successor}")
    elif its(first)[-1]["end"]:
        figures.append(f"{successor} runs {(its(successor)[0]['runs'] - its(first)[-1]['end']) / 1e6:.0f} ms after the last process of {first}")
    gone = [e["t"] for e in events("pod", since) if e["name"] == first and e["type"] == "DELETED"]
    if gone and its(first) and its(first)[-1]["end"]:
        figures.append(f"{first}: last process {(its(first)[-1]['end'] - gone[0]) / 1e9:.1f} s after its DELETED")
    bound = [e["t"] for e in events("pod", since) if e["name"] == successor and e["node"]]
    if gone and bound:
        figures.append(f"{successor} bound {(bound[0] - gone[0]) / 1e9:.2f} s after that")
    verdict(text, since, *figures, bad=bad)


def quiet(seconds="60"):
    """Deletes all pods, until no container has run for 2 s."""
    for pod in api("GET", PODS)["items"]:
        delete(pod["metadata"]["name"], 0)
    end, since = time.time() + float(seconds), None
    while time.time() < end:
        busy = not all(c["end"] for c in containers()) or api("GET", PODS)["items"]
        since = None if busy else since or time.time()
        if since and time.time() - since > 2:  # a start may have been under way
            return
        time.sleep(0.2)
    print("FAILED: still running:", [c["name"] for c in containers() if not c["end"]])
    sys.exit(1)


# What is done.


def forced(count, seed):
    """(f) Forced deletions at random moments while pods keep coming."""
    chance, since, made, done, deleting = random.Random(int(seed)), time.time_ns(), 0, 0, {}
    while done < int(count):
        pods = {p["metadata"]["name"]: p for p in api("GET", PODS)["items"]}
        for name in [n for n, p in pods.items() if p["status"].get("phase") in ("Failed", "Succeeded")]:
            delete(name, 0)
            pods.pop(name)
        for name, at in list(deleting.items()):
            if time.time() >= at:
                delete(name, 0)
                del deleting[name]
                done += 1
        waiting = [n for n, p in pods.items() if not p["spec"].get("nodeName")]
        if len(waiting) < 3:
            made += 1
            loops = {"command": "busybox sleep 1; exit 1", "restartPolicy": "Always"} if chance.random() < 0.2 else {}
            create(f"f-{made}", chance.choice(["1", "2", "4", "8", "8", "50%", "50%"]), chance.choice(["0", "3", "12"]), **loops)
        ready = [n for n, p in pods.items() if n not in deleting and "deletionTimestamp" not in p["metadata"]
                 and any("running" in s["state"] or s["restartCount"] for s in p["status"].get("containerStatuses", []))]
        if ready and done + len(deleting) < int(count):
            name = chance.choice(ready)
            if chance.random() < 0.5:  # after a deletion that is under way
                delete(name, None)
                deleting[name] = time.time() + chance.uniform(0, 3)
            else:
                deleting[name] = time.time()
        time.sleep(chance.uniform(0.1, 1.5))
    time.sleep(15)
    gaps = successions(since)
    late = max(gaps, default=(0, "", ""))
    verdict(f"(f) {count} forced deletions among {made} pods, seed {seed}", since, f"the successor's program after the last process: {spread([g[0] for g in gaps])}", f"the latest: {late[2]} after {late[1]}")


def normal(count):
    """Normal ends and deletions, one pod of all GPUs after the other: when the next is bound, and what the daemon wrote."""
    count, since, made, done = int(count), time.time_ns(), 0, 0
    # Even ones end by themselves, odd ones are deleted.
    command = lambda n: "busybox sleep 0.3" if n % 2 == 0 else "trap 'exit 0' TERM; while :; do busybox sleep 0.1; done"
    asked = set()
    while done < count:
        while made < min(done + 4, count):
            create(f"n-{made}", "8", command=command(made), terminationGracePeriodSeconds=1)
            made += 1
        pods = {p["metadata"]["name"]: p for p in api("GET", PODS)["items"]}
        for name, pod in pods.items():
            n = int(name[2:])
            if n % 2 and n not in asked and any("running" in s["state"] for s in pod["status"].get("containerStatuses", [])):
                asked.add(n)
                delete(name, 1)
            if pod["status"].get("phase") in ("Succeeded", "Failed") and n not in asked and n % 2 == 0 and n < done - 3:
                asked.add(n)
                delete(name, 0) # has ended long ago: only the object
        done = sum(n % 2 == 1 and f"n-{n}" not in pods or pods.get(f"n-{n}", {"status": {"phase": "Succeeded"}})["status"].get("phase") in ("Succeeded", "Failed") for n in range(made))
        time.sleep(0.05)
    normally(since, f"{count} normal ends in {(time.time_ns() - since) / 1e9:.0f} s")


def normally(since, text="normal ends"):
    """From the first word that a pod has ended (a terminal phase, or DELETED) to the Binding of the next."""
    since, ended, deleted, bound = int(since), {}, {}, {}
    for e in events("pod", since):
        if not e["name"].startswith("n-"):
            continue
        n = int(e["name"][2:])
        if e["type"] == "DELETED" or e["phase"] in ("Succeeded", "Failed"):
            ended.setdefault(n, e["t"])
        if e["type"] == "DELETED":
            deleted.setdefault(n, e["t"])
        if e["node"]:
            bound.setdefault(n, e["t"])
    order = sorted(bound, key=bound.get)
    pairs = list(zip(order, order[1:]))
    gaps = {odd: [(bound[second] - ended[first]) / 1e6 for first, second in pairs if first in ended and first % 2 == odd] for odd in (0, 1)}
    late = [(bound[second] - deleted[first]) / 1e6 for first, second in pairs if first % 2 and first in deleted]
    _, other = lease_writes(since)
    verdict(
        text, since, f"ended by itself, to the next Binding: {spread(gaps[0])}", f"deleted: its terminal status to the next Binding: {spread(gaps[1])}",
        f"its DELETED to the next Binding: {spread(late)}", f"next program after the last process: {spread([g[0] for g in successions(since)])}",
        bad=[f"{other} Lease writes say something else"] if other else [])


def burst(text, *kinds):
    """Pods that are created at once, `WHAT*COUNT` of each kind: how long each takes until its program runs."""
    since, names = time.time_ns(), {}
    for kind in kinds:
        what, count = kind.split("*")
        names[what] = [f"s-{since // 1000000 % 1000000000}-{what.strip('%')}-{n}" for n in range(int(count))]
        for name in names[what]:
            create(name, what, "0")
    everyone = {n for of in names.values() for n in of}
    end = time.time() + 180
    while time.time() < end and everyone - {c["name"] for c in containers() if c["runs"]}:
        time.sleep(0.1)
    time.sleep(0.3)
    created = {e["name"]: e["t"] for e in reversed(events("pod", since))}
    took = {c["name"]: (c["runs"] - created[c["name"]]) / 1e6 for c in containers() if c["name"] in created and c["runs"]}
    figures = {what: [took[n] for n in of if n in took] for what, of in names.items()}
    if text:
        print(text + ": " + "; ".join(f"{what} GPUs: {spread(of)} of {len(names[what])}" for what, of in figures.items()), flush=True)
        no = refused(since)
        if no:
            print("failed admissions:", no)
    else:
        print(json.dumps(figures))
    quiet()


def bursts(text):
    lines = [json.loads(line) for line in open("log/bursts")]
    print(text + ": " + "; ".join(f"{what} GPUs: {spread([ms for of in lines for ms in of.get(what, [])])}" for what in ("0", "1")), flush=True)


def loops(count, what):
    for n in range(int(count)):
        create(f"loop-{n}", what, command="busybox sleep 1; exit 1", restartPolicy="Always")


def restarts(text, since):
    """From the end of a container to the program of the next one of its pod."""
    since, found, by = int(since), [], {}
    for c in sorted(containers(), key=lambda c: c["seen"]):
        before = by.get(c["uid"])
        if before and before["end"] and c["runs"] and c["runs"] >= since:
            found.append(((c["runs"] - before["end"]) / 1e6, c["name"]))
        by[c["uid"]] = c
    dead = [c["name"] for c in by.values() if c["name"].startswith("loop") and c["end"] and time.time_ns() - c["end"] > 10e9]
    print(f"{text}: {spread([f[0] for f in found])}; the longest: {max(found, default='none')}; still waiting for more than 10 s: {dead or 'none'}", flush=True)
    if found:
        os.system(f"kubectl describe pod {max(found)[1]} | sed -n '/^Events:/,$p' | sed 's/^/  /'")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
