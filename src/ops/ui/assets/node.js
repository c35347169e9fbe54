// One node: its devices where they are in the machine, and what its records say of them.

import { table } from './store.js';
import { age, ask, graphs, grid, h, line, lockCommand, lockState, more, setText, withCommands } from './dom.js';
import { isNic, sentence, state, states, used } from './devices.js';

const by = (items, key) => {
  const groups = new Map();
  for (const item of items) {
    const value = key(item);
    if (!groups.has(value)) groups.set(value, []);
    groups.get(value).push(item);
  }
  return [...groups].sort(([a], [b]) => String(a).localeCompare(String(b), 'en', { numeric: true }));
};
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(bytes % 2 ** 30 ? 1 : 0)} GiB`;

/** `50 %, 40 GiB`. */
function amount(held, device) {
  if (!held) return '';
  const memory = held.memory || (held.ratio && device.memory ? (device.memory * held.ratio) / 100 : 0);
  return [held.core && `${held.core} %`, memory && gib(memory)].filter(Boolean).join(', ') || 'whole';
}

export default function make(root, name) {
  const heading = h('h1', {}, name);
  const summary = h('p', { class: 'first' });
  const content = h('div', {});
  root.append(heading, summary, content);
  let asked = 0;
  let timer;
  let shown;

  /** Asked again when the node's row has changed, once a second at most. */
  async function load() {
    clearTimeout(timer);
    const turn = (asked += 1);
    try {
      const detail = await ask(`api/node/${encodeURIComponent(name)}`);
      if (turn === asked) draw(detail);
    } catch (error) {
      if (turn === asked && !shown) content.replaceChildren(h('p', { class: 'wrong' }, error.message));
    }
  }

  const linked = (device) => (isNic(device.device) ? device.device : graphs(device.device, name, device));

  function draw(detail) {
    shown = detail;
    heading.replaceChildren(graphs(name, name));
    const { node, devices, pods, events, scheduler } = detail;
    const { lock } = node;
    const agent = node.agent ?? {};
    const word = table('nodes')[name]?.daemon ?? 'none';
    const facts = [
      ['Node', node.status],
      ['Node daemon', `${word}${agent.version ? `, version ${agent.version}` : ''}${node.daemonFault ? `: ${node.daemonFault}` : ''}`],
      ['Registered names', (agent.registered ?? []).join(', ') || 'none'],
      ['Lock', lock ? [`${lock.holder ?? 'an unknown pod'} holds it`, lock.ageAt ? ' for ' : '', lock.ageAt ? age(lock.ageAt) : '', `: ${lockState(lock)}`] : 'none'],
      ['Suspect', node.suspect],
      ['Closed', node.closed],
      ['Reserved for', (node.reservedFor ?? []).join(', ')],
      ['Scheduler', scheduler.why ?? `${name} ${scheduler.message}`],
      ['Waits for the lock', (scheduler.waitsForLock ?? []).join(', ')],
      ['What to do', [lock && lockCommand(lock.advice), scheduler.advice].filter(Boolean).join('; ')],
    ].filter(([, text]) => text);
    content.replaceChildren(
      h('dl', {}, facts.flatMap(([term, text]) => [h('dt', {}, term), h('dd', {}, term === 'What to do' ? withCommands(text) : text)])),
      h('h2', {}, 'Devices in the machine'), machine(devices),
      h('h2', {}, 'Who holds what'), ...records(devices, pods, detail.records),
      h('h2', {}, 'Every device'), list(devices),
      h('h2', {}, 'Events'), happened(events),
    );
  }

  /** Sockets, in them PCIe switches, in them GPUs and NICs. GPUs that NVLink joins have one border, and the list below names them. */
  function machine(devices) {
    const domains = [...new Set(devices.map((device) => device.nvlink).filter(Boolean))];
    const box = (device) => {
      const row = table('nodes')[name] ?? {};
      const cell = row.devices?.[device.device] ?? {};
      const look = state(cell);
      const link = device.nvlink ? ` link${domains.indexOf(device.nvlink) % 4}` : '';
      const mark = h('i', { class: `cell ${look}${isNic(device.device) ? ' nic' : ''}` });
      mark.style.setProperty('--used', `${Math.min(100, used(cell))}%`);
      const title = sentence(device.device, cell);
      return h('li', { class: `device${link}`, title }, mark, h('b', {}, linked(device), cell.g ? ` ${cell.g}` : ''), h('span', {}, states[look] ?? look),
        h('span', { class: 'dim' }, device.holders.map((holder) => `${holder.pod.namespace}/${holder.pod.name} ${holder.percent} %`).join(', ')));
    };
    const socket = (device) => (device.socket >= 0 ? `Socket ${device.socket}` : `NUMA node ${device.numa ?? '?'}`);
    const joined = (domain) => devices.filter((device) => device.nvlink === domain).map((device) => device.device).join(', ');
    const links = domains.length
      ? h('ul', { class: 'links' }, domains.map((domain, at) => h('li', {}, h('i', { class: `link link${at % 4}` }), ` NVLink domain ${domain}: ${joined(domain)}`)))
      : h('p', { class: 'dim' }, 'No NVLink between the GPUs.');
    const sockets = by(devices, socket).map(([title, inside]) =>
      h('section', { class: 'socket' }, h('h3', {}, title),
        by(inside, (device) => device.pcie ?? 'no PCIe switch').map(([pcie, own]) =>
          h('div', { class: 'switch' }, h('h4', {}, pcie), h('ul', {}, own.map(box))))));
    return h('div', { class: 'machine' }, sockets, links);
  }

  /** The three records of who holds what: the pods' annotations, the kubelet's list, and the node daemon's ledger. */
  function records(devices, pods, why) {
    const notes = [];
    if (why.ledger) notes.push(`The ledger cannot be read (${why.ledger}); its column is what the node daemon's Lease says: where it differs from the annotations.`);
    if (why.kubelet && why.kubelet !== why.ledger) notes.push(`The kubelet's list cannot be read: ${why.kubelet}`);
    const missing = notes.map((text) => h('p', { class: 'wrong' }, text));
    if (!pods.length) return [...missing, h('p', { class: 'empty' }, 'No pod here holds a device.')];
    const known = new Map(devices.map((device, place) => [device.id, { ...device, place }]));
    const place = ({ id }) => known.get(id)?.place ?? Infinity;
    const { element, body } = grid('Holders', ['Pod', 'Device', 'Annotation', 'Kubelet', 'Ledger', 'Same']);
    for (const { pod, rows, word } of pods) {
      rows.sort((a, b) => place(a) - place(b)).forEach(({ id, annotation, kubelet, ledger, differs }, at) => {
        const device = known.get(id) ?? { device: id };
        const listed = kubelet ? kubelet.join(', ') : why.kubelet ? '?' : '';
        const mark = `${differs ? '≠' : word || (why.kubelet && why.ledger) ? '' : '='} ${word ?? ''}`.trim();
        body.append(h('tr', { class: differs ? 'differs' : undefined },
          [pod, device.device, amount(annotation, device), listed, amount(ledger, device), mark].map((text, column) => h('td', { class: column ? undefined : at ? 'name again' : 'name' }, text))));
      });
    }
    return [...missing, element];
  }

  function list(devices) {
    const { element, body } = grid('Devices', ['Device', 'Health', 'Since', 'Why', 'Model', 'Memory', 'PCIe', 'NUMA', 'NVLink', 'Id']);
    for (const device of devices) {
      const since = device.since ? age(Date.parse(device.since) / 1000) : '';
      const cells = [linked(device), device.health, since, device.reason, device.model, device.memory ? gib(device.memory) : '', device.pcie, device.numa, device.nvlink, device.id];
      const row = line(['name brief', `brief state ${device.health}`, 'brief', 'why', '', '', '', '', '', '']);
      row.cells_.forEach((cell, at) => cell.append(cells[at] ?? ''));
      row.firstChild.prepend(more(device.device));
      body.append(row);
    }
    return element;
  }

  function happened(events) {
    if (events.why) return h('p', { class: 'wrong' }, `Events cannot be read: ${events.why}`);
    if (!events.items.length) return h('p', { class: 'empty' }, 'No events.');
    const { element, body } = grid('Events', ['When', 'Type', 'Reason', 'Message']);
    for (const { at, type, reason, message } of events.items) {
      const row = line(['brief', 'brief', 'brief', 'why']);
      [at ? age(at) : '', type, reason, message].forEach((text, cell) => row.cells_[cell].append(text ?? ''));
      body.append(row);
    }
    return element;
  }

  return {
    update(changed) {
      const row = table('nodes')[name];
      setText(summary, row ? '' : Object.keys(table('nodes')).length ? `There is no node ${name}.` : '');
      if (!changed) return load();
      if (!changed.nodes?.includes(name) && !changed.locks?.includes(name)) return undefined;
      clearTimeout(timer);
      timer = setTimeout(load, 1000);
      return undefined;
    },
    close() {
      clearTimeout(timer);
      asked += 1;
    },
  };
}
