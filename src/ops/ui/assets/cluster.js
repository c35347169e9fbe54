// The cluster: tiles, and every device of every node, as boxes that name their holders where the nodes are few, else as cells. Only the
// lines on the screen are in the document.

import { about, now, table, waiting } from './store.js';
import { age, aged, ask, h, keep, setAge, setText } from './dom.js';
import { brief, cells, isNic, leaves, sentence, state, states, used } from './devices.js';

const LINE = 46; // pixels of a line of nodes, as style.css has it
const WIDTH = 300; // least pixels of a node
const FEW = 25; // fewer nodes are boxes
const HUES = 8; // that style.css has; what is left over is "other"
const SIZES = [1, 2, 4, 8];
const AGES = [['under an hour', 3600], ['under a day', 86400], ['under a week', 604800], ['a week or more', Infinity]];
const natural = new Intl.Collator('en', { numeric: true }).compare;

/** Counts of a node; made once for each of its changes. */
function summary(node) {
  const count = { gpu: {}, nic: {}, whole: 0, text: null, shares: null };
  for (const [name, device] of leaves(node)) {
    const kind = isNic(name) ? count.nic : count.gpu;
    const word = state(device);
    kind[word] = (kind[word] ?? 0) + 1;
    if (word === 'free' && name.startsWith('gpu-')) count.whole += 1;
  }
  return count;
}

/** What the filter looks through: holders and models. */
function words(node) {
  const all = leaves(node).flatMap(([, device]) => [...Object.keys(device.h ?? {}), device.m ?? '']);
  return [...new Set(all), node.model ?? ''].join('\n').toLowerCase();
}

/** `160 GPUs: 40 free, 118 held, 2 unhealthy`. */
function gpuWords(counts) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const parts = Object.keys(states).filter((word) => counts[word]).map((word) => `${counts[word]} ${states[word]}`);
  return `${total} GPU${total === 1 ? '' : 's'}${total ? `: ${parts.join(', ')}` : ''}`;
}

const add = (sums, key, amount) => sums.set(key, (sums.get(key) ?? 0) + amount);

export default function make(root) {
  const summaries = new Map();
  let chosen = []; // names of nodes by the filter
  let order = []; // lines: {title} or {names}
  let groups = null; // label values by node
  let columns = 1;
  let few = null;

  // Tiles.
  const legend = (kind) => Object.fromEntries(Object.keys(states).map((word) => [word, h('b', {}, '0')]));
  const bar = h('div', { class: 'bar', 'aria-hidden': 'true' });
  const [gpus, nics] = [legend(), legend()];
  const list = (counts) =>
    Object.entries(states).map(([word, text]) => h('li', {}, h('i', { class: `cell ${word}` }), counts[word], ` ${text}`));
  const fits = SIZES.map((size) => [size, h('b', {}, '0')]);
  const largest = h('p', { class: 'big' });
  const [depth, oldest, slow, stuck, silent] = [h('b', {}, '0'), age(), h('b', {}, '0'), h('b', {}, '0'), h('b', {}, '0')];
  const waits = h('ul', {}, h('li', {}, depth, ' in the ', h('a', { href: '#/queue' }, 'queue')), h('li', {}, 'oldest: ', oldest));
  const [note, keepAged] = aged(waits);
  const tiles = h(
    'section',
    { class: 'tiles', 'aria-label': 'The cluster in numbers' },
    h('div', { class: 'tile gpus' }, h('h2', {}, 'GPUs'), bar, h('ul', { class: 'cells-legend' }, list(gpus))),
    h('div', { class: 'tile' }, h('h2', {}, 'NICs'), h('ul', { class: 'cells-legend' }, list(nics))),
    h(
      'div',
      { class: 'tile' },
      h('h2', {}, 'Fits now'),
      largest,
      h('ul', {}, fits.map(([size, count]) => h('li', {}, count, ` × ${size} GPU${size > 1 ? 's' : ''}`))),
    ),
    h(
      'div',
      { class: 'tile' },
      h('h2', {}, 'Waiting'), note, waits,
      h('ul', {}, h('li', {}, slow, ' slow and ', stuck, ' stuck ', h('a', { href: '#/locks' }, 'locks')),
        h('li', {}, silent, ' silent node daemons')),
    ),
  );

  // Heat-map.
  const filter = h('input', { type: 'search', id: 'filter', placeholder: 'node, namespace/pod or model', autocomplete: 'off' });
  filter.value = about.hello?.namespace ? `${about.hello.namespace}/` : '';
  const select = (id, ...options) => h('select', { id }, options.map((text) => h('option', {}, text)));
  const sort = select('sort', 'name', 'most free', 'least free');
  const colour = select('colour', 'state', 'namespace', 'gang', 'age');
  const group = h('select', { id: 'group' }, h('option', { value: '' }, 'nothing'));
  const shown = h('output', {});
  const field = (text, input) => h('label', {}, `${text} `, input);
  const tools = h('form', { class: 'tools' }, field('Filter', filter), field('Sort by', sort), field('Group by', group), field('Colour by', colour), shown);
  tools.onsubmit = (event) => event.preventDefault();
  const owners = h('ul', { class: 'legend owners', 'aria-label': 'Colours' });
  const lines = h('div', { class: 'lines' });
  const map = h('section', { class: 'map', tabindex: '0', 'aria-label': 'Nodes and their devices' }, lines);
  const title = h('h1', {}, 'Cluster');
  root.append(title, tiles, tools, owners, map);
  const tip = document.getElementById('tip');

  // Colours.
  const hues = new Map(); // by what is coloured, which keeps its own
  let gangs = null; // by pod
  function ownerOf(pod, { created }) {
    if (colour.value === 'age') return AGES.find(([, most]) => now() - created?.[pod] < most)?.[0] ?? '';
    if (colour.value === 'namespace') return pod.slice(0, pod.indexOf('/'));
    gangs ??= new Map(Object.entries(table('gangs')).flatMap(([gang, { children = [] }]) => children.map((of) => [of, gang])));
    return gangs.get(pod) ?? '';
  }
  const hasHues = () => colour.value !== 'state';
  /** The hue of a device is that of its largest holder. */
  function hue({ h: held }, node) {
    if (!held || !hasHues()) return '';
    const [[pod]] = Object.entries(held).sort(([, a], [, b]) => b - a);
    return ` hue${hues.get(ownerOf(pod, node)) ?? ''}`;
  }

  /** GPUs, in percent, by what is coloured. */
  function shares(node) {
    const sums = new Map();
    for (const [name, device] of leaves(node)) if (!isNic(name)) for (const pod in device.h) add(sums, ownerOf(pod, node), device.h[pod]);
    return sums;
  }

  /** Gives the largest of these a hue, and draws all again where that has changed something. */
  function paint(sums) {
    const by = [...sums].sort(([a, x], [b, y]) => y - x || natural(a, b));
    let changed = false;
    for (const [owner] of by) {
      if (!owner || hues.has(owner)) continue;
      if (hues.size === HUES) [...hues.keys()].filter((of) => !sums.has(of)).slice(0, 1).forEach((of) => hues.delete(of));
      if (hues.size === HUES) break;
      const taken = new Set(hues.values());
      hues.set(owner, [...Array(HUES).keys()].find((number) => !taken.has(number)));
      changed = true;
    }
    const rest = by.filter(([owner]) => !hues.has(owner) && owner);
    const named = by.filter(([owner]) => hues.has(owner)).map(([owner, sum]) => [owner, sum, owner]);
    if (rest.length) named.push(['/other', rest.reduce((all, [, sum]) => all + sum, 0), `${rest.length} other${rest.length > 1 ? 's' : ''}`]);
    if (sums.has('')) named.push(['', sums.get(''), `no ${colour.value}`]);
    const texts = new Map(named.map(([owner, sum, text]) => [owner, ` ${text}: ${+(sum / 100).toFixed(1)} GPU${sum === 100 ? '' : 's'}`]));
    keep(owners, [...texts.keys()], (owner) => h('li', {}, h('i', { class: `cell held hue${hues.get(owner) ?? ''}` }), h('span')), (item, owner) => {
      item.firstChild.className = `cell held hue${hues.get(owner) ?? ''}`;
      setText(item.lastChild, texts.get(owner));
    });
    if (changed) scroll(true);
  }

  /** The nodes in lines, after a filter, a sort, a group or the width has changed. */
  function arrange() {
    const nodes = table('nodes');
    const word = filter.value.trim().toLowerCase();
    const holds = (name) => (summaries.get(name).text ??= words(nodes[name])).includes(word);
    const names = Object.keys(nodes).filter((name) => !word || name.includes(word) || (summaries.has(name) && holds(name)));
    const free = (name) => summaries.get(name)?.gpu.free ?? 0;
    const by = { name: natural, 'most free': (a, b) => free(b) - free(a), 'least free': (a, b) => free(a) - free(b) }[sort.value];
    chosen = names.sort((a, b) => by(a, b) || natural(a, b));
    const parts = new Map();
    for (const name of names) {
      const part = groups ? (groups[name] ?? 'without the label') : '';
      if (!parts.has(part)) parts.set(part, []);
      parts.get(part).push(name);
    }
    if (few !== names.length < FEW) {
      few = names.length < FEW;
      lines.classList.toggle('boxes', few);
      lines.replaceChildren();
      lines.kept = undefined;
    }
    columns = Math.max(1, Math.floor(map.clientWidth / WIDTH));
    order = [];
    for (const [part, members] of [...parts].sort(([a], [b]) => natural(a, b))) {
      if (groups) order.push({ part, title: `${part} · ${members.length} node${members.length > 1 ? 's' : ''} · ${gpuWords(sum(members).gpu)}` });
      for (let at = 0; at < members.length; at += columns) order.push({ names: members.slice(at, at + columns) });
    }
    lines.style.height = few ? 'auto' : `${order.length * LINE}px`;
    numbers();
    scroll(true);
  }

  /** Puts the lines on the screen into the document, and all of them where they are few. Those are drawn that are new, or `all`. */
  function scroll(all) {
    const first = few ? 0 : Math.max(0, Math.floor(map.scrollTop / LINE) - 2);
    const visible = few ? order : order.slice(first, first + Math.ceil(map.clientHeight / LINE) + 4);
    const places = new Map();
    visible.forEach(({ part, title, names = [] }, at) => {
      const top = (first + at) * LINE;
      if (title !== undefined) places.set(`# ${part}`, { top, left: 0, title });
      names.forEach((name, column) => places.set(name, { top, left: column / columns, name }));
    });
    keep(
      lines,
      [...places.keys()],
      (key) => (places.get(key).name ? tile(key) : h('h2', { class: 'heading' })),
      (element, key) => {
        const { top, left, name, title } = places.get(key);
        if (!few) {
          element.style.transform = `translateY(${top}px)`;
          element.style.left = `${left * 100}%`;
          element.style.width = name ? `${100 / columns}%` : '100%';
        }
        if (title) setText(element, title);
        if (name && (all || !element.drawn)) draw(element, name);
      },
    );
  }

  /** Draws the node again if it is on the screen. Nothing is measured: that would cost a layout for each delta. */
  function drawn(name) {
    const element = lines.kept?.get(name);
    if (element) draw(element, name);
  }

  function tile(name) {
    const element = h('a', { class: 'host', href: `#/node/${name}` }, h('span', { class: 'name' }, name), h('span', { class: 'free' }));
    element.cells = h('span', { class: 'cells', role: 'img' });
    element.append(element.cells);
    return element;
  }

  function draw(element, name) {
    const node = table('nodes')[name];
    element.drawn = Boolean(node);
    if (!node) return;
    const word = filter.value.trim().toLowerCase();
    const all = cells(node);
    const byName = new Map(all.map((cell) => [cell.name, cell]));
    const count = summaries.get(name);
    const closed = node.closed ? ` · ${node.closed}` : '';
    const bad = node.suspect ? ' · suspect' : node.daemon === 'fresh' && node.status === 'Ready' ? '' : ` · ${node.status}, daemon ${node.daemon}`;
    setText(element.children[1], node.tooLarge ? 'too large to show' : `${count?.gpu.free ?? 0} free${closed || bad}`);
    element.classList.toggle('silent', !node.open);
    element.classList.toggle('late', ['late', 'unregistered', 'away', 'stopped'].includes(node.daemon));
    element.cells.setAttribute('aria-label', all.map((cell) => sentence(cell.name, cell.device)).join('; '));
    let before = all[0]?.device.p;
    keep(
      element.cells,
      all.map((cell) => cell.name),
      (key) => (few ? h('span', { class: 'slot' }, h('i'), h('b', {}, key), h('span', {})) : h('i')),
      (child, key) => {
        const { device, parts } = byName.get(key);
        const dim = word && !name.includes(word) && !Object.keys(device.h ?? {}).some((pod) => pod.includes(word));
        const look = parts.length ? 'split' : `${state(device)}${hue(device, node)}`;
        const cell = few ? child.firstChild : child;
        cell.className = `cell ${look}${isNic(key) ? ' nic' : ''}${!few && device.p !== before ? ' gap' : ''}${dim ? ' dim' : ''}`;
        before = device.p;
        cell.dataset.device = key;
        cell.style.setProperty('--used', `${Math.min(100, used(device))}%`);
        if (few) setText(child.lastChild, parts.length ? parts.map((part) => `${part.device.g ?? ''} ${brief(part.device)}`).join('; ') : brief(device));
        if (!parts.length && !cell.firstChild) return;
        keep(cell, parts.map((part) => part.name), () => h('i', {}), (inner, part) => {
          inner.className = `cell ${state(node.devices[part])}${hue(node.devices[part], node)}`;
          // `3g.40gb` is three of the GPU's seven slices.
          inner.style.flexGrow = parseInt(node.devices[part].g, 10) || 1;
          inner.dataset.device = part;
        });
      },
    );
  }

  /** Holders of the device below the pointer, or of every device of the node that has the focus. */
  function explain(event) {
    const element = event.target.closest?.('.host');
    const name = element?.firstChild.textContent;
    const node = element && table('nodes')[name];
    tip.hidden = !node;
    if (!node) return;
    const below = event.target.closest('.slot')?.firstChild ?? event.target;
    const key = event.type === 'focusin' ? null : event.target.dataset.device ?? below.dataset.device;
    const named = key ? [[key, node.devices[key]]] : Object.entries(node.devices ?? {});
    const texts = named.filter(([, device]) => device).map(([device, value]) => sentence(device, value));
    const head = `${name} · ${node.status} · daemon ${node.daemon}${node.model ? ` · ${node.model}` : ''}`;
    tip.replaceChildren(h('strong', {}, head), ...texts.slice(0, 24).map((text) => h('div', {}, text)));
    const place = element.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left, innerWidth - tip.offsetWidth - 4))}px`;
    const bottom = place.bottom + 4;
    tip.style.top = `${bottom + tip.offsetHeight < innerHeight ? bottom : Math.max(4, place.top - tip.offsetHeight - 4)}px`;
  }

  /** What these nodes have in all. */
  function sum(names) {
    const all = { gpu: {}, nic: {}, pods: SIZES.map(() => 0), most: 0, quiet: 0, shares: new Map() };
    const nodes = table('nodes');
    for (const name of names) {
      const count = summaries.get(name);
      if (!count) continue;
      for (const kind of ['gpu', 'nic']) for (const word in count[kind]) all[kind][word] = (all[kind][word] ?? 0) + count[kind][word];
      SIZES.forEach((size, at) => (all.pods[at] += Math.floor(count.whole / size)));
      all.most = Math.max(all.most, count.whole);
      if (nodes[name].daemon !== 'fresh' && nodes[name].daemon !== 'none') all.quiet += 1;
      if (hasHues()) for (const [owner, percent] of (count.shares ??= shares(nodes[name]))) add(all.shares, owner, percent);
    }
    return all;
  }

  function numbers() {
    const all = sum(chosen);
    for (const word of Object.keys(states)) {
      setText(gpus[word], all.gpu[word] ?? 0);
      setText(nics[word], all.nic[word] ?? 0);
    }
    keep(bar, Object.keys(states).filter((word) => all.gpu[word]), (word) => h('i', { class: `cell ${word}` }), (part, word) => {
      part.style.flexGrow = all.gpu[word];
    });
    setText(largest, all.most ? `at most ${all.most} GPU${all.most > 1 ? 's' : ''} on one node` : 'no whole GPU is free');
    fits.forEach(([, element], at) => setText(element, all.pods[at]));
    setText(silent, all.quiet);
    setText(shown, `${chosen.length} of ${Object.keys(table('nodes')).length} nodes${filter.value.trim() ? ` · ${gpuWords(all.gpu)}` : ''}`);
    paint(all.shares);
  }

  function queued() {
    const queue = Object.values(waiting());
    setText(depth, queue.length);
    setAge(oldest, queue.length ? Math.min(...queue.map((item) => item.queuedAt ?? Infinity)) : undefined);
    const late = (word) => Object.values(table('locks')).filter(({ delay }) => delay === word).length;
    setText(slow, late('slow'));
    setText(stuck, late('stuck') + late('ahead'));
    keepAged();
  }

  /** Labels of the nodes, again where nodes have come: they are not in their rows. */
  async function regroup() {
    const key = group.value;
    const values = key ? await ask(`api/labels?key=${encodeURIComponent(key)}`).catch(() => groups) : null;
    if (key !== group.value) return;
    groups = values;
    arrange();
  }
  async function labels() {
    group.onfocus = null;
    const keys = await ask('api/labels').catch(() => ({}));
    group.append(...Object.entries(keys).map(([key, count]) => h('option', { value: key }, `${key} (${count})`)));
  }
  function recolour() {
    gangs = null;
    for (const count of summaries.values()) count.shares = null;
  }
  colour.onchange = () => {
    hues.clear();
    if (colour.value === 'age') AGES.forEach(([of], at) => hues.set(of, at));
    recolour();
    arrange();
  };
  group.onfocus = labels;
  group.onchange = regroup;
  filter.oninput = arrange;
  sort.onchange = arrange;
  map.onscroll = () => scroll(false);
  map.onmouseover = explain;
  map.onmouseleave = () => (tip.hidden = true);
  map.addEventListener('focusin', explain);
  map.addEventListener('focusout', () => (tip.hidden = true));
  // Pods grow older without a change of their node.
  const older = setInterval(() => colour.value === 'age' && (recolour(), arrange()), 60_000);
  const size = new ResizeObserver(arrange);
  size.observe(map);

  return {
    update(changed) {
      const nodes = table('nodes');
      let moved = !changed;
      let came = false;
      for (const name of changed?.nodes ?? (changed ? [] : new Set([...summaries.keys(), ...Object.keys(nodes)]))) {
        came ||= !summaries.has(name);
        moved ||= summaries.has(name) !== Boolean(nodes[name]);
        if (nodes[name]) summaries.set(name, summary(nodes[name]));
        else summaries.delete(name);
      }
      const owned = colour.value === 'gang' && changed?.gangs;
      if (owned) recolour();
      if (!changed || changed.queue || changed.jobs || changed.locks || changed.problems) queued();
      if (came && group.value) regroup();
      if (moved || owned || (changed.nodes && (sort.value !== 'name' || filter.value || groups))) return arrange();
      if (!changed.nodes) return undefined;
      numbers();
      new Set(changed.nodes).forEach(drawn);
      return undefined;
    },
    close() {
      size.disconnect();
      clearInterval(older);
      tip.hidden = true;
    },
  };
}
