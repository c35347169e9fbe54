//! What to do about a refusal, by the rule that gave it and its words.

/// What turns a refusal of `rule` that says `reason`; `None` where the reason says it itself.
pub(super) fn advice(rule: &str, reason: &str) -> Option<&'static str> {
    let devices = || match reason {
        "agent not ready" => {
            "The node daemon is not there or silent: look at its pod on that node (`kubectl -n baton-system get pods -o wide`), \
             and run `baton doctor` there"
        }
        "no device inventory" => "The node daemon has published no Device object: `baton doctor` on that node says why",
        _ if reason.starts_with("agent does not serve") => {
            "The node's kubelet knows no such resource: sharing is off there, the device is missing, or the registration is \
             lost; `baton get nodes -o wide` and `baton doctor` on that node say which"
        }
        _ if reason.starts_with("a pod without an assignment") => {
            "Pods of another scheduler hold devices there that the node daemon has not yet named: it does so within seconds of \
             the kubelet's call; `baton get pods -A` shows them"
        }
        _ if reason.starts_with("have ") => {
            "Wait for pods to end, ask for less per pod, or add nodes: `baton get nodes` shows what is free, `-o wide` here which \
             pod holds which device"
        }
        _ => {
            "Change the pod's limits or device annotations: they cannot be met as they stand, on any node (docs/request.md)"
        }
    };
    Some(match rule {
        "DeviceFit" => devices(),
        "TaintToleration" => {
            "Give the pod a toleration of that taint, or take the taint off the nodes (`kubectl taint`)"
        }
        "NodeAffinity" => "Change the pod's nodeSelector or node affinity, or label nodes so that they match",
        "NodeName" => "The pod asks for a node by name that is another one: leave spec.nodeName out",
        "NodeUnschedulable" => "Let the node take pods again with `kubectl uncordon`",
        "NodePorts" => "Another pod has that host port: use another one, or none",
        "NodeResourcesFit" if reason == "too many pods" => "The node's kubelet takes no more pods (maxPods)",
        "NodeResourcesFit" if reason.starts_with("have ") => devices(),
        "NodeResourcesFit" => {
            "Ask for less, wait for pods to end, or add nodes: `kubectl describe node` shows what is requested"
        }
        "InterPodAffinity" => {
            "Pod affinity or anti-affinity, of this pod or of those that run, excludes the nodes: change the terms"
        }
        "PodTopologySpread" => "A topology spread constraint excludes the nodes: raise maxSkew, or use ScheduleAnyway",
        "VolumeBinding" if reason.contains("storage class") && reason.contains("does not exist") => {
            "Make the storage class, or name another one in a new claim: `kubectl get storageclass`"
        }
        "VolumeBinding" if reason.contains("does not exist") || reason.contains("has not been made") => {
            "Make the claim (an ephemeral volume's is made by the controller manager), or correct its name in the pod"
        }
        "VolumeBinding" if reason.starts_with("have no free volume") => {
            "Nobody makes volumes of that class: add a PersistentVolume that is large enough and reachable from the node"
        }
        "VolumeBinding" if reason == "volume node affinity" || reason == "volume in another zone" => {
            "The claim's volume is elsewhere: the pod can only go to nodes that reach it (`kubectl get pv -o wide`)"
        }
        "VolumeBinding" => "See what the claim and its provisioner say: `kubectl describe pvc`",
        "SchedulingGates" => "Whoever set the gates removes them from spec.schedulingGates when the pod may start",
        _ => return None,
    })
}
