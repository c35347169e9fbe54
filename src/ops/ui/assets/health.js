// What is out of service, what does not hold, and who runs which version.

import { about, out, table } from './store.js';
import { age, ask, graphs, grid, h, keep, line, more, setAge, setText, withCommands } from './dom.js';

const MOST = 500;
/** What to do, by the state, and a chapter about it. */
function todo(node, { part, state, why, drain }) {
  if (state === 'cordoned') return [`\`baton uncordon ${node}/${part}\` returns it`, runbook('Taking one GPU out of use')];
  if (state === 'unhealthy') {
    const first = drain ? `\`baton drain ${node}/${part}\` evicts its pods` : 'no pod has to leave';
    if (part.startsWith('nic-')) return [first];
    return [first, why?.includes('XID 79') ? runbook('A GPU falls off the bus (XID 79)') : runbook('Resetting a GPU')];
  }
  if (state === 'suspect') return [`\`baton explain node ${node}\` says which pods failed`, runbook('A node that fails pods')];
  if (state === 'unregistered' || state === 'away') return [`\`kubectl describe node ${node}\` shows since when its kubelet is away`];
  return [`\`kubectl get pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin --field-selector spec.nodeName=${node}\` shows its daemon`, runbook('The node daemon off a node, and on again')];
}

/** A chapter of docs/runbooks.md, which this page brings along: the browser scrolls to its title. */
function runbook(chapter) {
  return h('a', { href: `runbooks.txt#:~:text=${encodeURIComponent(chapter).replaceAll('-', '%2D')}`, target: '_blank' }, `runbook: ${chapter}`);
}

export default function make(root) {
  const { element, body } = grid('Out of service', ['Node', 'State', 'Since', 'What is wrong', 'What to do']);
  const empty = h('p', { class: 'empty' }, 'Every device and every node daemon is in service.');
  const left = h('p', { class: 'dim' });
  const findings = h('div', { class: 'answer', role: 'status' }, 'The cluster is being checked …');
  const check = h('button', { type: 'button' }, 'Check again');
  const versions = h('ul', {});
  root.append(
    h('h1', {}, 'Health'), element, empty, left,
    h('section', {}, h('h2', {}, 'What must always hold'), findings, check),
    h('section', {}, h('h2', {}, 'Versions'), versions),
  );

  async function audit() {
    check.disabled = true;
    try {
      const found = await ask('api/audit');
      const broken = found.admission?.state === 'broken' ? found.admission.problems ?? [] : [];
      const texts = [...found.violations.map((violation) => violation.text), ...broken.map(String)];
      const notes = [found.leasesUnread, found.slicesUnread, ...found.leaving ?? [], ...found.stuck ?? [], ...found.unserved ?? [], ...found.unhealthy ?? [], ...found.unreadable ?? [], ...[...found.otherScheduler, ...found.visibleDevices].map((of) => `${of.pods.join(', ')}: ${of.text}`)];
      const count = `${found.nodes} nodes, ${found.devices} Device objects and ${found.podsWithDevices} pods that ask for devices were checked: `;
      findings.replaceChildren(
        h('p', { class: texts.length ? 'wrong' : 'first' }, count, found.outcome),
        h('ul', {}, [...texts, ...notes.filter(Boolean).map((note) => `note: ${note}`)].map((text) => h('li', {}, text))),
      );
    } catch (error) {
      findings.replaceChildren(h('p', { class: 'wrong' }, error.message));
    }
    check.disabled = false;
  }
  check.onclick = audit;
  audit();

  function row(node) {
    const element = line(['name brief', 'state brief', 'since brief', 'why', 'advice']);
    element.cells_[0].append(more(node), h('a', { href: `#/node/${node}` }, node), ...(about.hello?.grafana ? [' ', graphs('graphs', node)] : []));
    element.cells_[2].append(age());
    return element;
  }

  function fill(element, node) {
    const found = out.get(node);
    const text = JSON.stringify(found);
    if (element.text === text) return;
    element.text = text;
    const [, state, since, why, advice] = element.cells_;
    const [{ state: worst, sinceAt }] = found;
    setText(state, worst);
    state.className = `brief state ${worst}`;
    setAge(since.firstChild, sinceAt);
    const fault = (of) => h('li', {}, h('b', {}, of.part), of.state === worst ? '' : h('span', { class: `state ${of.state}` }, ` ${of.state}`), of.why ? `: ${of.why}` : '');
    why.replaceChildren(h('ul', {}, found.map(fault)));
    // Of each state the first: what helps one helps the others.
    const each = new Map(found.toReversed().map((of) => [of.state, of]));
    const help = (of) => { const [words, link] = todo(node, of); return h('li', {}, withCommands(words), ...(link ? ['; ', link] : [])); };
    advice.replaceChildren(h('ul', {}, [...each.values()].toReversed().map(help)));
  }

  function draw() {
    const nodes = [...out.keys()].sort((a, b) => out.get(a)[0].rank - out.get(b)[0].rank || out.get(b).length - out.get(a).length || a.localeCompare(b));
    keep(body, nodes.slice(0, MOST), row, fill);
    element.hidden = nodes.length === 0;
    empty.hidden = nodes.length > 0;
    setText(left, nodes.length > MOST ? `the severest ${MOST} of ${nodes.length}` : '');
    const count = new Map();
    for (const { version, daemon } of Object.values(table('nodes'))) {
      const key = version ?? (daemon === 'none' ? 'none' : 'unknown');
      count.set(key, (count.get(key) ?? 0) + 1);
    }
    const { leader, version, scheduler } = table('about').scheduler ?? {};
    const texts = [...count].map(([of, nodes]) => (of === 'none' ? `without a node daemon: ${nodes} node${nodes > 1 ? 's' : ''}` : `node daemon ${of}: ${nodes} node${nodes > 1 ? 's' : ''}`));
    const lines = [...texts.sort(), leader ? `scheduler ${scheduler ?? 'of an earlier version'}: leads at ${leader}` : 'no scheduler answers', `this page: ${version ?? ''}`];
    keep(versions, lines, (text) => h('li', {}, text));
  }

  return { update: (changed) => (!changed || changed.nodes || changed.about) && draw() };
}
