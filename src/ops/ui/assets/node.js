// One node: its devices where they are in the machine, and what its records say of them.

import { table } from './store.js';
import { age, ask, grid, h, setText, withCommands } from './dom.js';
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

/** `50 % core, 40 GiB`. */
function amount(held, device) {
  if (!held) return '';
  const memory = held.memory ?? (held.ratio && device.memory ? (device.memory * held.ratio) / 100 : undefined);
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

  function draw(detail) {
    shown = detail;
    const { node, devices, pods, events, scheduler } = detail;
    const agent = node.agent ?? {};
    const word = table('nodes')[name]?.daemon ?? 'none';
    const facts = [
      ['Node', node.status],
      ['Node daemon', `${word}${agent.version ? `, version ${agent.version}` : ''}${node.daemonGone ? `: ${node.daemonGone}` : ''}`],
      ['Registered names', (agent.registered ?? []).join(', ') || 'none'],
      ['Lock', node.lock ? `${node.lock.state}, held by ${node.lock.holder ?? 'an unknown pod'}` : 'none'],
      ['Suspect', node.suspect],
      ['Kept for', node.keptFor],
      ['Reserved for', (node.reservedFor ?? []).join(', ')],
      ['Scheduler', scheduler.why ?? `${name} ${scheduler.message}`],
      ['Waits for the lock', (scheduler.waitsForLock ?? []).join(', ')],
      ['What to do', [node.lock?.advice, scheduler.advice].filter(Boolean).join('; ')],
    ].filter(([, text]) => text);
    content.replaceChildren(
      h('dl', {}, facts.flatMap(([term, text]) => [h('dt', {}, term), h('dd', {}, term === 'What to do' ? withCommands(text) : text)])),
      h('h2', {}, 'Devices in the machine'), machine(devices),
      h('h2', {}, 'Who holds what'), records(devices, pods),
      h('h2', {}, 'Every device'), list(devices),
      h('h2', {}, 'Events'), happened(events),
    );
  }

  /** Sockets, in them PCIe switches, in them GPUs and NICs; the border shows the NVLink domain. */
  function machine(devices) {
    const domains = [...new Set(devices.map((device) => device.nvlink).filter(Boolean))];
    const box = (device) => {
      const row = table('nodes')[name] ?? {};
      const cell = row.devices?.[device.device] ?? {};
      const look = state(row, cell);
      const link = device.nvlink ? ` link${domains.indexOf(device.nvlink) % 4}` : '';
      const mark = h('i', { class: `cell ${look}${isNic(device.device) ? ' nic' : ''}` });
      mark.style.setProperty('--used', `${Math.min(100, used(cell))}%`);
      return h('li', { class: `device${link}`, title: sentence(row, device.device, cell) }, mark, h('b', {}, device.device), h('span', {}, states[look]),
        h('span', { class: 'dim' }, device.holders.map((holder) => `${holder.pod.namespace}/${holder.pod.name} ${holder.percent} %`).join(', ')));
    };
    const socket = (device) => (device.socket >= 0 ? `Socket ${device.socket}` : `NUMA node ${device.numa ?? '?'}`);
    const links = domains.length ? h('p', { class: 'dim' }, `NVLink domains: ${domains.map((domain, at) => `${domain} (border ${at % 4 + 1})`).join(', ')}`) : '';
    const sockets = by(devices, socket).map(([title, inside]) =>
      h('section', { class: 'socket' }, h('h3', {}, title),
        by(inside, (device) => device.pcie ?? 'no PCIe switch').map(([pcie, own]) =>
          h('div', { class: 'switch' }, h('h4', {}, pcie), h('ul', {}, own.map(box))))));
    return h('div', { class: 'machine' }, sockets, links);
  }

  /** What the annotation of each pod says, and what the node daemon says, who compares its ledger with the kubelet's list. */
  function records(devices, pods) {
    if (!pods.length) return h('p', { class: 'empty' }, 'No pod here holds a device.');
    const place = (id) => devices.findIndex((device) => device.id === id);
    const known = new Map(devices.map((device) => [device.id, device]));
    const { element, body } = grid('Holders', ['Pod', 'Device', 'Annotation', 'Node daemon (kubelet and ledger)', 'Same?']);
    for (const { pod, annotation, daemon, differs, unserved } of pods) {
      const ids = [...new Set([...Object.keys(annotation), ...Object.keys(daemon ?? {})])].sort((a, b) => place(a) - place(b));
      ids.forEach((id, at) => {
        const device = known.get(id) ?? { device: id };
        const mark = !daemon ? 'says nothing' : differs ? (unserved ? '≠ never served' : '≠') : '=';
        body.append(h('tr', { class: differs ? 'differs' : undefined }, h('td', { class: 'name' }, at ? '' : pod), h('td', {}, device.device),
          h('td', {}, amount(annotation[id], device)), h('td', {}, amount(daemon?.[id], device)), h('td', {}, mark)));
      });
    }
    return element;
  }

  function list(devices) {
    const { element, body } = grid('Devices', ['Device', 'Health', 'Since', 'Why', 'Model', 'Memory', 'PCIe', 'NUMA', 'NVLink', 'Id']);
    for (const device of devices) {
      const since = device.since ? age(Date.parse(device.since) / 1000) : '';
      const cells = [device.device, device.health, since, device.reason, device.model, device.memory ? gib(device.memory) : '', device.pcie, device.numa, device.nvlink, device.id];
      body.append(h('tr', {}, cells.map((text, at) => h('td', { class: at === 0 ? 'name' : at === 1 ? `state ${device.health}` : undefined }, text === undefined ? '' : text))));
    }
    return element;
  }

  function happened(events) {
    if (events.why) return h('p', { class: 'wrong' }, `Events cannot be read: ${events.why}`);
    if (!events.items.length) return h('p', { class: 'empty' }, 'No events.');
    const { element, body } = grid('Events', ['When', 'Type', 'Reason', 'Message']);
    for (const { at, type, reason, message } of events.items) {
      body.append(h('tr', {}, h('td', {}, at ? age(at) : ''), h('td', {}, type ?? ''), h('td', {}, reason ?? ''), h('td', {}, message ?? '')));
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
