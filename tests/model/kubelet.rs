//! What the kubelet of a node does, as recorded: one pod at a time is admitted, in any order here; a call per container;
//! an error fails the pod; a checkpoint spares the call. A pod enters the active set with its first call.

use baton::decide::pod::ContainerKind;

use super::coverage::Branch;
use super::machine::{Handoff, Trouble};
use super::state::{DEVICES, Kube, Life, PODS, Phase, State};

impl Handoff {
    /// The pod that a node's kubelet admits right now.
    pub fn admitting(&self, state: &State, node: usize) -> Option<usize> {
        (0..PODS).find(|pod| state.kube[*pod].admitting && state.pods[*pod].on(node))
    }

    /// A pod that the kubelet may admit next. It saw the pod before any deletion.
    pub fn can_admit(&self, state: &State, pod: usize) -> bool {
        let is = &state.pods[pod];
        let Some(bound) = is.bound else { return false };
        let candidate = is.exists() && !is.ended() && !state.kube[pod].active && is.life != Life::PastGrace;
        candidate && self.admitting(state, usize::from(bound.node)).is_none()
    }

    /// Pods whose call may come next: the one under admission, or else any that may be admitted.
    pub fn callers(&self, state: &State, node: usize) -> Vec<usize> {
        match self.admitting(state, node) {
            Some(pod) => vec![pod],
            None => {
                let here = (0..PODS).filter(|pod| state.pods[*pod].on(node) && !state.kube[*pod].without);
                here.filter(|pod| self.can_admit(state, *pod)).collect()
            }
        }
    }

    /// Into the active set without a call: the checkpoint is whole, or the pod runs without devices.
    pub fn admit(state: &mut State, pod: usize) {
        state.kube[pod].active = true;
    }

    /// The first container without ids in the checkpoint.
    pub fn next_container(&self, state: &State, pod: usize) -> Option<usize> {
        (0..self.setup.kinds(pod).len()).find(|at| state.kube[pod].ids[*at].is_none())
    }

    /// Ids that the kubelet may choose for container `at`, and those that it must take first: what a plain init container
    /// of the same pod has left.
    pub fn available(&self, state: &State, pod: usize, at: usize) -> (Vec<u8>, Vec<u8>) {
        let Some(bound) = state.pods[pod].bound else { return (Vec::new(), Vec::new()) };
        let kinds = self.setup.kinds(pod);
        let holds = |other: usize, id: u8| {
            let counted = state.kube[other].active || (state.pods[other].exists() && !state.pods[other].ended());
            counted && state.kube[other].ids.contains(&Some(id))
        };
        let home = (0..DEVICES as u8).filter(|id| self.setup.home[usize::from(*id)] == usize::from(bound.node));
        let reusable: Vec<u8> =
            (0..at).filter(|of| kinds[*of] == ContainerKind::Init).filter_map(|of| state.kube[pod].ids[of]).collect();
        let free = home.filter(|id| !(0..PODS).any(|other| holds(other, *id)) || reusable.contains(id)).collect();
        (free, reusable)
    }

    /// One call, for the next container of the pod under admission. `id` is the kubelet's own choice; `None` asks for a
    /// preference first.
    pub fn call(&self, state: &mut State, pod: usize, id: Option<u8>, trouble: Trouble) {
        let Some(bound) = state.pods[pod].bound else { return };
        let node = usize::from(bound.node);
        (state.kube[pod].active, state.kube[pod].admitting) = (true, true);
        let Some(at) = self.next_container(state, pod) else { return };
        let (free, must) = self.available(state, pod, at);
        if free.is_empty() {
            // "Requested number of devices unavailable": no call is made.
            self.reject(state, pod);
            return;
        }
        if !state.nodes[node].agent_up {
            self.hit(Branch::AgentDown);
            self.reject(state, pod);
            return;
        }
        let (id, books) = match id {
            Some(id) => (id, self.books(state, node)),
            None => match self.prefer(state, node, &free, &must) {
                Some((id, books)) if must.is_empty() || must.contains(&id) => (id, books),
                _ => (free[0], self.books(state, node)),
            },
        };
        let throttled = trouble == Trouble::Throttled;
        let is_late = state.pods[pod].overtaken && !self.is_served(state, pod);
        let answer = self.allocate(state, node, (pod, at), id, books, throttled);
        if is_late {
            self.hit(if answer.is_ok() { Branch::LateServed } else { Branch::LateRefused });
        }
        match (answer, trouble) {
            (_, Trouble::AgentDies) => {
                self.hit(Branch::AgentCrashInCall);
                self.agent_dies(state, node);
                self.reject(state, pod);
            }
            (Ok(_), Trouble::KubeletDies) => {
                self.hit(Branch::KubeletRestartInCall);
                self.restart_kubelet(state, node);
            }
            (Ok(device), _) => {
                state.kube[pod].ids[at] = Some(id);
                state.kube[pod].answer[at] = Some(device);
                state.kube[pod].admitting = self.next_container(state, pod).is_some();
            }
            (Err(()), _) => self.reject(state, pod),
        }
    }

    /// UnexpectedAdmissionError: the pod fails, its containers never start.
    fn reject(&self, state: &mut State, pod: usize) {
        state.kube[pod] = Kube::default();
        if state.pods[pod].exists() {
            state.pods[pod].phase = Phase::Failed;
        }
    }

    /// No plugin is registered for the name: no call is made, the pod runs without devices.
    pub fn admit_without(&self, state: &mut State, pod: usize) {
        self.hit(Branch::WithoutDevices);
        state.kube[pod].active = true;
        state.kube[pod].without = true;
    }

    /// Admitted and not yet running.
    pub fn can_run(&self, state: &State, pod: usize) -> bool {
        let is = &state.kube[pod];
        let object = &state.pods[pod];
        is.active && !is.admitting && object.phase == Phase::Pending && object.life == Life::There
    }

    /// The containers end by themselves.
    pub fn finish(&self, state: &mut State, pod: usize) {
        state.pods[pod].phase = Phase::Succeeded;
        state.kube[pod] = Kube::default();
    }

    /// A deleted pod that is not being admitted: its containers are stopped, then the API server removes it.
    pub fn can_terminate(&self, state: &State, pod: usize) -> bool {
        let object = &state.pods[pod];
        let deleted = matches!(object.life, Life::Deleting | Life::PastGrace | Life::Gone) && object.bound.is_some();
        deleted && !state.kube[pod].admitting && (object.life != Life::Gone || state.kube[pod].active)
    }

    pub fn terminate(&self, state: &mut State, pod: usize) {
        state.pods[pod].life = Life::Gone;
        state.kube[pod] = Kube::default();
    }

    /// Memory goes, checkpoint and containers stay; containers of pods that the API server does not have are killed. The
    /// agent hears of it and forgets whose admission is over.
    pub fn restart_kubelet(&self, state: &mut State, node: usize) {
        Self::admits_again(state, node);
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            if state.pods[pod].exists() {
                (state.kube[pod].active, state.kube[pod].admitting) = (false, false);
            } else {
                state.kube[pod] = Kube::default();
            }
        }
    }
}
