// What is out of service, what does not hold, and who runs which version.

import { table } from './store.js';
import { age, ask, grid, h, keep, setAge, setText, withCommands } from './dom.js';

const MOST = 500;
/** What to do, by the state. */
function todo({ node, device, state }) {
  if (state === 'cordoned') return [`\`baton uncordon ${node}/${device}\` returns it; `, runbook('Taking one GPU out of use')];
  if (state === 'unhealthy') return [`\`baton drain ${node}/${device}\` evicts its pods; `, runbook('Resetting a GPU')];
  if (state === 'suspect') return [`\`baton explain node ${node}\` says which pods failed; `, runbook('A node that fails pods')];
  return [`\`kubectl get pods -A -o wide --field-selector spec.nodeName=${node}\` shows its daemon; `, runbook('The node daemon off a node, and on again')];
}

/** A chapter of docs/runbooks.md, which this page brings along: the browser scrolls to its title. */
function runbook(chapter) {
  return h('a', { href: `runbooks.txt#:~:text=${encodeURIComponent(chapter).replaceAll('-', '%2D')}`, target: '_blank' }, `runbook: ${chapter}`);
}

export default function make(root) {
  const { element, body } = grid('Out of service', ['Node', 'Device', 'State', 'Since', 'Why', 'What to do']);
  const empty = h('p', { class: 'empty' }, 'Every device and every node daemon is in service.');
  const more = h('p', { class: 'dim' });
  const findings = h('div', { class: 'answer', role: 'status' }, 'The cluster is being checked …');
  const check = h('button', { type: 'button' }, 'Check again');
  const versions = h('ul', {});
  root.append(
    h('h1', {}, 'Health'), element, empty, more,
    h('section', {}, h('h2', {}, 'What must always hold'), findings, check),
    h('section', {}, h('h2', {}, 'Versions'), versions),
  );

  async function audit() {
    check.disabled = true;
    try {
      const found = await ask('api/audit');
      const broken = found.admission?.state === 'broken' ? found.admission.problems ?? [] : [];
      const texts = [...found.violations.map((violation) => violation.text), ...broken.map(String)];
      const notes = [found.leasesUnread, found.slicesUnread, ...[...found.otherScheduler, ...found.visibleDevices].map((of) => `${of.pods.join(', ')}: ${of.text}`)];
      const count = `${found.nodes} nodes, ${found.devices} Device objects and ${found.pods} pods were checked: `;
      findings.replaceChildren(
        h('p', { class: texts.length ? 'wrong' : 'first' }, count, texts.length ? `${texts.length} thing(s) do not hold` : 'everything holds'),
        h('ul', {}, [...texts, ...notes.filter(Boolean).map((note) => `note: ${note}`)].map((text) => h('li', {}, text))),
      );
    } catch (error) {
      findings.replaceChildren(h('p', { class: 'wrong' }, error.message));
    }
    check.disabled = false;
  }
  check.onclick = audit;
  audit();

  function out() {
    const rows = new Map();
    for (const [name, node] of Object.entries(table('nodes'))) {
      if (node.fault && node.daemon !== 'none') rows.set(name, { node: name, device: 'node daemon', state: node.daemon, why: node.fault });
      if (node.suspect) rows.set(`${name} suspect`, { node: name, device: 'node', state: 'suspect', why: node.suspect });
      for (const [device, { s, why, sinceAt }] of Object.entries(node.devices ?? {})) {
        if (s === 'unhealthy' || s === 'cordoned') rows.set(`${name}/${device}`, { node: name, device, state: s, why, sinceAt });
      }
    }
    return rows;
  }

  function row() {
    const cells = ['name', 'gpu', 'state', 'since', 'why', 'advice'].map((name) => h('td', { class: name }));
    cells[0].append(h('a', {}));
    cells[3].append(age());
    const element = h('tr', {}, cells);
    element.cells_ = cells;
    return element;
  }

  function draw() {
    const rows = out();
    keep(body, [...rows.keys()].slice(0, MOST), row, (element, key) => {
      const { node, device, state, why, sinceAt } = rows.get(key);
      const [name, part, word, since, reason, advice] = element.cells_;
      name.firstChild.href = `#/node/${node}`;
      setText(name.firstChild, node);
      setText(part, device);
      setText(word, state);
      word.className = `state ${state}`;
      setAge(since.firstChild, sinceAt);
      setText(reason, why ?? '');
      const advised = `${state} ${node}/${device}`;
      if (element.advised === advised) return;
      element.advised = advised;
      const [text, link] = todo(rows.get(key));
      advice.replaceChildren(...withCommands(text), link);
    });
    element.hidden = rows.size === 0;
    empty.hidden = rows.size > 0;
    setText(more, rows.size > MOST ? `the first ${MOST} of ${rows.size}` : '');
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
