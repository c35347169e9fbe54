//! What to do about a refusal: by the help that its rule names, else by the rule.

use crate::core::rules::plugins::{self, node_affinity, resources_fit};
use crate::help::Help;

/// What may help; `None` where the reason itself says it. `named`: the pod goes to nodes of given names alone. `away`: devices of nodes
/// that are too small are out of service.
pub(super) fn advice(rule: &str, help: Help, named: bool, away: bool) -> Option<&'static str> {
    let own = match help {
        Help::LargerNode if away && !named => Some(
            "A pod runs on one node, and those nodes are too small for it even when they are empty: ask for less per pod, bring back devices that \
             are out of service (`baton get devices`), or add larger nodes",
        ),
        _ if !named => None,
        // Other nodes are not meant, and a name that no node has is said apart.
        Help::Rule if rule == node_affinity::NAME => return None,
        Help::Room => Some(
            "The pod goes to no other node: wait for pods to end there, ask for less, or let it go elsewhere: `baton get nodes` shows what is \
             free, `baton get devices` which pod holds which device",
        ),
        Help::LargerNode if away => Some(
            "The pod goes to no other node, and that one is too small for it even when it is empty: ask for less, bring back devices that are out \
             of service (`baton get devices`), or let it go elsewhere",
        ),
        Help::LargerNode => Some(
            "The pod goes to no other node, and that one is too small for it even when it is empty: ask for less, or let it go elsewhere",
        ),
        Help::Rule if rule == resources_fit::NAME => Some(
            "The pod goes to no other node: ask for less, or wait for pods to end there: `kubectl describe node` shows what is requested",
        ),
        _ => None,
    };
    own.or_else(|| by_help(help)).or_else(|| plugins::advice(rule).filter(|_| help == Help::Rule))
}

/// What may help, where the rule does not matter.
pub(super) fn by_help(help: Help) -> Option<&'static str> {
    Some(match help {
        Help::Rule => return None,
        Help::Daemon => {
            "The node daemon is missing or does not report: look at its pod there (`kubectl get pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin \
             --field-selector spec.nodeName=NODE`), or where there is none at its DaemonSet, and run `baton doctor` on the node; one that runs and is silent hangs: \
             kill it there by `pkill -KILL -f '^[^ ]*baton.device-plugin'`"
        }
        Help::Stopped => {
            "The node daemon there was shut down: its pod was deleted or is being replaced, or the DaemonSet does not select the node any more: \
             `kubectl get daemonsets,pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin` shows both; pods with devices start there \
             once it runs again"
        }
        Help::Kubelet => {
            "The kubelet there is away or not well: on the machine `systemctl status kubelet` and `journalctl -u kubelet` say why; `kubectl \
             describe node NODE` has its condition Ready, which may be behind by a minute"
        }
        Help::AgentConfig => {
            "Give scheduler and node daemon the same --node-lock-key: `baton doctor` on that node says which side to change"
        }
        Help::AnotherGpuDriver => {
            "Two drivers would hand out the same GPUs: take the other driver's DaemonSet off that node, or label the node \
             baton.io/device-plugin=off (docs/operate.md)"
        }
        Help::NodeSuspect => {
            "Pods failed there because of the machine: `baton explain node NODE` has the last failure and the end; remove the cause, and \
             the node takes pods again (docs/runbooks.md)"
        }
        Help::SharesUnavailable => {
            "The library or the MPS daemon that limits GPU shares there does not work: the condition SharesUnavailable in `kubectl get device \
             NODE -o yaml` says what; remove the cause, and the node takes shares again (docs/share.md)"
        }
        Help::ShareIsolation => {
            "Start node daemons with the --share-isolation that the pod's label koordinator.sh/gpu-isolation-provider names, or \
             remove from the pod what is not compatible with it (docs/share.md)"
        }
        Help::Inventory => "The node daemon has published no Device object: `baton doctor` on that node says why",
        Help::Registration => {
            "The node's kubelet knows no such resource: sharing is off there, the device is missing, or the registration is \
             lost; `baton get nodes -o wide` and `baton doctor` on that node say which"
        }
        Help::SmallerPod => {
            "Make the pod smaller: fewer containers, resources and tolerations, fewer values in its selectors; a label on nodes can stand for a \
             list of their names"
        }
        Help::Unassigned => {
            "Pods of another scheduler hold devices there that the node daemon has not identified yet: it does so within seconds of \
             the kubelet's call; or a more important pod is nominated there and waits for pods to leave: `baton get pods -A` shows both"
        }
        Help::Room => {
            "Wait for pods to end, ask for less per pod, or add nodes: `baton get nodes` shows what is free, `baton get devices` which pod \
             holds which device"
        }
        Help::LargerNode => {
            "A pod runs on one node, and those nodes are too small for it even when they are empty: ask for less per pod, or add larger nodes"
        }
        Help::Selector => {
            "No device there has the labels of the hint's selector: `kubectl get device NODE -o yaml` shows which they have; \
             correct `device-allocate-hint`, or leave the selector out (docs/request.md)"
        }
        Help::PartitionTable => {
            "Write the node's table of GPU partitions to its Device object, or ask for `BestEffort` in `gpu-partition-spec` \
             (docs/request.md): waiting does not help"
        }
        Help::MaxPods => "The node's kubelet takes no more pods (maxPods)",
        Help::StorageClass => {
            "Create the storage class, or name another one in a new claim: `kubectl get storageclass`"
        }
        Help::Claim => {
            "Create the claim (an ephemeral volume's is created by the controller manager), or correct its name in the pod"
        }
        Help::Volume => {
            "No provisioner creates volumes of that class: add a PersistentVolume that is large enough and reachable from the node"
        }
        Help::Storage => {
            "The class's CSI driver publishes how much storage is left, and for those nodes that is less than the claim asks for: \
             `kubectl get csistoragecapacities -A` shows it; free storage, or create a smaller claim"
        }
        Help::Reach => {
            "The claim's volume is elsewhere: the pod can only go to nodes that reach it (`kubectl get pv -o wide`)"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Reason, ShareMemory};
    use baton_contract::hint::{ExclusivePolicy, TopologyScope};

    fn of(reason: &Reason) -> &'static str {
        advice("DeviceFit", reason.help(), false, false).unwrap()
    }

    #[test]
    fn a_pod_that_names_its_node_gets_no_advice_to_add_others() {
        for (rule, help) in
            [("DeviceFit", Help::Room), ("DeviceFit", Help::LargerNode), (resources_fit::NAME, Help::Rule)]
        {
            let [named, free] = [true, false].map(|named| advice(rule, help, named, false).unwrap());
            assert!(named.starts_with("The pod goes to no other node") && !named.contains("add "), "{named}");
            assert!(free.contains("add "), "{free}");
        }
        let affinity = [true, false].map(|named| advice(node_affinity::NAME, Help::Rule, named, false));
        assert!(affinity[0].is_none() && affinity[1].is_some_and(|of| of.contains("label nodes")));
    }

    #[test]
    fn only_devices_that_are_away_are_to_be_brought_back() {
        for (named, away) in [(false, false), (false, true), (true, false), (true, true)] {
            let said = advice("DeviceFit", Help::LargerNode, named, away).unwrap();
            assert_eq!(said.contains("bring back"), away, "{said}");
            assert_eq!(said.contains("add larger nodes"), !named, "{said}");
        }
    }

    #[test]
    fn only_where_devices_are_short_is_waiting_advised() {
        let (wanted, free, total) = (2, 0, 8);
        for short in [
            Reason::FewGpus { wanted, free, total },
            Reason::NoShareRoom { core: 50, memory: ShareMemory::Ratio(50), shares: 1 },
            Reason::FewMigs { profile: "1g.10gb".into(), wanted, free, total },
            Reason::FewNics { wanted, free, total },
            Reason::NoNicRoom { percent: 50, most: 20 },
            Reason::Scope { what: "GPUs", scope: TopologyScope::Pcie, wanted },
            Reason::NotNear { wanted, near: 1 },
            Reason::NotAlone { what: "GPU", policy: ExclusivePolicy::DeviceLevel },
            Reason::NoVf,
            Reason::Partition { wanted, table: true },
        ] {
            assert!(of(&short).starts_with("Wait for pods to end"), "{short}");
        }
        let selector = of(&Reason::NoMatch { what: "GPU" });
        assert!(selector.contains("labels") && !selector.contains("Wait"), "{selector}");
        let table = of(&Reason::Partition { wanted, table: false });
        assert!(table.contains("table") && table.contains("waiting does not help"), "{table}");
    }
}
