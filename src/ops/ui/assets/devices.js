// What the cells of a node say: one rule for the heat-map, the tiles and the page of a node.

/** The states of a device, from free to out of service. A pattern as well as a colour: see style.css. */
export const states = {
  free: 'free',
  partly: 'partly held',
  held: 'held',
  reserved: 'reserved',
  off: 'not offered',
  cordoned: 'cordoned',
  unhealthy: 'unhealthy',
};

export const isNic = (name) => name.startsWith('nic-');

export function used(device) {
  return Object.values(device.h ?? {}).reduce((sum, percent) => sum + percent, 0);
}

/** As the server has it. */
export const state = (device) => device.s ?? 'free';

/** The pods that hold it, with their parts. */
const holders = (device) => Object.entries(device.h ?? {}).map(([pod, percent]) => (percent === 100 ? pod : `${pod} ${percent} %`));

/** Who holds a device, or what it is else. */
export function brief(device) {
  const [word, parts] = [state(device), holders(device)];
  if (device.r) parts.push(`for ${device.r.join(', ')}`);
  if (!parts.length || word === 'unhealthy' || word === 'cordoned') parts.unshift(states[word] ?? word);
  return parts.join(', ');
}

/** One sentence about a device. */
export function sentence(name, device) {
  const word = states[state(device)] ?? device.s;
  const parts = [`${name}${device.g ? ` (MIG ${device.g})` : ''}: ${word}`];
  if (device.h) parts.push(`by ${holders(device).join(', ')}`);
  if (device.r) parts.push(`reserved for ${device.r.join(', ')}`);
  if (device.why) parts.push(device.why);
  if (device.m) parts.push(device.m);
  return parts.join(' · ');
}

const number = (name) => name.split('-').slice(1).map(Number);

/** The devices of a node by PCIe switch, GPUs before NICs, MIG devices below their GPU: `[{name, device, parts: [{name, device}]}]`. */
export function cells(node) {
  const all = Object.entries(node.devices ?? {}).map(([name, device]) => ({ name, device, parts: [] }));
  const gpus = new Map(all.filter((cell) => !cell.name.startsWith('mig-')).map((cell) => [cell.name, cell]));
  for (const cell of all) if (cell.name.startsWith('mig-')) gpus.get(`gpu-${cell.name.split('-')[1]}`)?.parts.push(cell);
  const order = (a, b) => {
    const [[x1, x2 = 0], [y1, y2 = 0]] = [number(a.name), number(b.name)];
    return a.device.p - b.device.p || isNic(a.name) - isNic(b.name) || x1 - y1 || x2 - y2;
  };
  const sorted = [...gpus.values()].sort(order);
  sorted.forEach((cell) => cell.parts.sort(order));
  return sorted;
}

/** What new pods can be given, in no order: `[name, device]` of those that are not split, and of the parts of those that are. */
export const leaves = (node) => Object.entries(node.devices ?? {}).filter(([, device]) => device.s !== 'split');

/** The severest first: what stops pods that run, what takes no new ones, what will. */
const severity = ['held', 'gone', 'stale', 'suspect', 'unhealthy', 'stopped', 'away', 'unregistered', 'late', 'none', 'cordoned'];

/** What is out of service on a node, the severest first: `[{part, state, rank, why, sinceAt}]`. */
export function faults(node) {
  const found = [];
  const put = (part, state, why, sinceAt, drain) => found.push({ part, state, rank: severity.indexOf(drain ? 'held' : state), why, sinceAt, drain });
  if (node.fault) put('node daemon', node.daemon, node.fault);
  if (node.suspect) put('node', 'suspect', node.suspect);
  for (const name in node.devices) {
    const device = node.devices[name];
    if (device.s !== 'unhealthy' && device.s !== 'cordoned') continue;
    const by = device.h ? `held by ${holders(device).join(', ')}` : '';
    put(name, device.s, [device.why, by].filter(Boolean).join(' · '), device.sinceAt, device.drain);
  }
  return found.sort((a, b) => a.rank - b.rank);
}
