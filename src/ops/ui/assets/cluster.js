// The cluster: tiles, and a cell for every device of every node. Only the lines on the screen are in the document.

import { about, table } from './store.js';
import { age, ask, h, keep, setAge, setText } from './dom.js';
import { cells, isNic, leaves, sentence, state, states, used } from './devices.js';

const LINE = 46; // pixels of a line of nodes, as style.css has it
const WIDTH = 300; // least pixels of a node
const SIZES = [1, 2, 4, 8];

/** Counts of a node; made once for each of its changes. */
function summary(node) {
  const count = { gpu: {}, nic: {}, whole: 0, text: null };
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

export default function make(root) {
  const summaries = new Map();
  let order = []; // lines: {title} or {names}
  let groups = null; // label values by node
  let columns = 1;

  // Tiles.
  const legend = (kind) => Object.fromEntries(Object.keys(states).map((word) => [word, h('b', {}, '0')]));
  const bar = h('div', { class: 'bar', 'aria-hidden': 'true' });
  const [gpus, nics] = [legend(), legend()];
  const list = (counts) =>
    Object.entries(states).map(([word, text]) => h('li', {}, h('i', { class: `cell ${word}` }), counts[word], ` ${text}`));
  const fits = SIZES.map((size) => [size, h('b', {}, '0')]);
  const largest = h('p', { class: 'big' });
  const [depth, oldest, locks, silent] = [h('b', {}, '0'), age(), h('b', {}, '0'), h('b', {}, '0')];
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
      h('h2', {}, 'Waiting'),
      h('ul', {}, h('li', {}, depth, ' in the ', h('a', { href: '#/queue' }, 'queue')), h('li', {}, 'oldest: ', oldest),
        h('li', {}, locks, ' ', h('a', { href: '#/locks' }, 'locks'), ' older than 5s'), h('li', {}, silent, ' silent node daemons')),
    ),
  );

  // Heat-map.
  const filter = h('input', { type: 'search', id: 'filter', placeholder: 'node, namespace/pod or model', autocomplete: 'off' });
  filter.value = about.hello?.namespace ? `${about.hello.namespace}/` : '';
  const sort = h('select', { id: 'sort' }, ...['name', 'most free', 'least free'].map((text) => h('option', {}, text)));
  const group = h('select', { id: 'group' }, h('option', { value: '' }, 'nothing'));
  const shown = h('output', {});
  const field = (text, input) => h('label', {}, `${text} `, input);
  const tools = h('form', { class: 'tools' }, field('Filter', filter), field('Sort by', sort), field('Group by', group), shown);
  tools.onsubmit = (event) => event.preventDefault();
  const lines = h('div', { class: 'lines' });
  const map = h('section', { class: 'map', tabindex: '0', 'aria-label': 'Nodes and their devices' }, lines);
  const title = h('h1', {}, 'Cluster');
  root.append(title, tiles, tools, map);
  const tip = document.getElementById('tip');

  /** The nodes in lines, after a filter, a sort, a group or the width has changed. */
  function arrange() {
    const nodes = table('nodes');
    const word = filter.value.trim().toLowerCase();
    const holds = (name) => (summaries.get(name).text ??= words(nodes[name])).includes(word);
    const names = Object.keys(nodes).filter((name) => !word || name.includes(word) || (summaries.has(name) && holds(name)));
    const free = (name) => summaries.get(name)?.gpu.free ?? 0;
    const natural = (a, b) => a.localeCompare(b, 'en', { numeric: true });
    const by = { name: natural, 'most free': (a, b) => free(b) - free(a), 'least free': (a, b) => free(a) - free(b) }[sort.value];
    names.sort((a, b) => by(a, b) || natural(a, b));
    const parts = new Map();
    for (const name of names) {
      const part = groups ? (groups[name] ?? 'without the label') : '';
      if (!parts.has(part)) parts.set(part, []);
      parts.get(part).push(name);
    }
    columns = Math.max(1, Math.floor(map.clientWidth / WIDTH));
    order = [];
    for (const [part, members] of [...parts].sort(([a], [b]) => natural(a, b))) {
      if (groups) order.push({ title: `${part} · ${members.length}` });
      for (let at = 0; at < members.length; at += columns) order.push({ names: members.slice(at, at + columns) });
    }
    lines.style.height = `${order.length * LINE}px`;
    setText(shown, `${names.length} of ${Object.keys(nodes).length} nodes`);
    scroll(true);
  }

  /** Puts the lines on the screen into the document. Those are drawn that are new, or `all`. */
  function scroll(all) {
    const first = Math.max(0, Math.floor(map.scrollTop / LINE) - 2);
    const visible = order.slice(first, first + Math.ceil(map.clientHeight / LINE) + 4);
    const places = new Map();
    visible.forEach(({ title, names = [] }, at) => {
      const top = (first + at) * LINE;
      if (title !== undefined) places.set(`# ${title}`, { top, left: 0, title });
      names.forEach((name, column) => places.set(name, { top, left: column / columns, name }));
    });
    keep(
      lines,
      [...places.keys()],
      (key) => (places.get(key).name ? tile(key) : h('h2', { class: 'heading' }, places.get(key).title)),
      (element, key) => {
        const { top, left, name } = places.get(key);
        element.style.transform = `translateY(${top}px)`;
        element.style.left = `${left * 100}%`;
        element.style.width = name ? `${100 / columns}%` : '100%';
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
    const kept = node.keptFor ? ` · kept for ${node.keptFor}` : '';
    const bad = node.suspect ? ' · suspect' : node.daemon === 'fresh' && node.status === 'Ready' ? '' : ` · ${node.status}, daemon ${node.daemon}`;
    setText(element.children[1], node.tooLarge ? 'too large to show' : `${count?.gpu.free ?? 0} free${kept}${bad}`);
    element.classList.toggle('silent', !node.open);
    element.cells.setAttribute('aria-label', all.map((cell) => sentence(cell.name, cell.device)).join('; '));
    let before = all[0]?.device.p;
    keep(
      element.cells,
      all.map((cell) => cell.name),
      () => h('i', {}),
      (cell, key) => {
        const { device, parts } = byName.get(key);
        const dim = word && !name.includes(word) && !Object.keys(device.h ?? {}).some((pod) => pod.includes(word));
        const look = parts.length ? 'split' : state(device);
        cell.className = `cell ${look}${isNic(key) ? ' nic' : ''}${device.p !== before ? ' gap' : ''}${dim ? ' dim' : ''}`;
        before = device.p;
        cell.dataset.device = key;
        cell.style.setProperty('--used', `${Math.min(100, used(device))}%`);
        if (!parts.length && !cell.firstChild) return;
        keep(cell, parts.map((part) => part.name), () => h('i', {}), (child, part) => {
          child.className = `cell ${state(node.devices[part])}`;
          // `3g.40gb` is three of the GPU's seven slices.
          child.style.flexGrow = parseInt(node.devices[part].g, 10) || 1;
          child.dataset.device = part;
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
    const key = event.type === 'focusin' ? null : event.target.dataset.device;
    const named = key ? [[key, node.devices[key]]] : Object.entries(node.devices ?? {});
    const texts = named.filter(([, device]) => device).map(([device, value]) => sentence(device, value));
    const head = `${name} · ${node.status} · daemon ${node.daemon}${node.model ? ` · ${node.model}` : ''}`;
    tip.replaceChildren(h('strong', {}, head), ...texts.slice(0, 24).map((text) => h('div', {}, text)));
    const place = element.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left, innerWidth - tip.offsetWidth - 4))}px`;
    const below = place.bottom + 4;
    tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : Math.max(4, place.top - tip.offsetHeight - 4)}px`;
  }

  function numbers() {
    const sums = { gpu: {}, nic: {} };
    const pods = Object.fromEntries(SIZES.map((size) => [size, 0]));
    let most = 0;
    let quiet = 0;
    const nodes = table('nodes');
    for (const [name, count] of summaries) {
      for (const kind of ['gpu', 'nic']) for (const word in count[kind]) sums[kind][word] = (sums[kind][word] ?? 0) + count[kind][word];
      for (const size of SIZES) pods[size] += Math.floor(count.whole / size);
      most = Math.max(most, count.whole);
      if (nodes[name]?.daemon !== 'fresh' && nodes[name]?.daemon !== 'none') quiet += 1;
    }
    for (const word of Object.keys(states)) {
      setText(gpus[word], sums.gpu[word] ?? 0);
      setText(nics[word], sums.nic[word] ?? 0);
    }
    keep(bar, Object.keys(states).filter((word) => sums.gpu[word]), (word) => h('i', { class: `cell ${word}` }), (part, word) => {
      part.style.flexGrow = sums.gpu[word];
    });
    setText(largest, most ? `at most ${most} GPU${most > 1 ? 's' : ''} on one node` : 'no whole GPU is free');
    fits.forEach(([size, element]) => setText(element, pods[size]));
    const queue = Object.values(table('queue'));
    setText(depth, queue.length);
    setAge(oldest, queue.length ? Math.min(...queue.map((item) => item.queuedAt ?? Infinity)) : undefined);
    const old = Object.values(table('locks')).filter((lock) => lock.ageAt < about.at / 1000 - 5);
    setText(locks, old.length);
    setText(silent, quiet);
  }

  async function labels() {
    group.onfocus = null;
    const keys = await ask('api/labels').catch(() => ({}));
    group.append(...Object.entries(keys).map(([key, count]) => h('option', { value: key }, `${key} (${count})`)));
  }
  group.onfocus = labels;
  group.onchange = async () => {
    groups = group.value ? await ask(`api/labels?key=${encodeURIComponent(group.value)}`) : null;
    arrange();
  };
  filter.oninput = arrange;
  sort.onchange = arrange;
  map.onscroll = () => scroll(false);
  map.onmouseover = explain;
  map.onmouseleave = () => (tip.hidden = true);
  map.addEventListener('focusin', explain);
  map.addEventListener('focusout', () => (tip.hidden = true));
  const size = new ResizeObserver(arrange);
  size.observe(map);

  return {
    update(changed) {
      const nodes = table('nodes');
      let moved = !changed;
      for (const name of changed?.nodes ?? (changed ? [] : new Set([...summaries.keys(), ...Object.keys(nodes)]))) {
        moved ||= summaries.has(name) !== Boolean(nodes[name]);
        if (nodes[name]) summaries.set(name, summary(nodes[name]));
        else summaries.delete(name);
      }
      numbers();
      if (moved || (changed.nodes && (sort.value !== 'name' || filter.value))) arrange();
      else for (const name of new Set(changed.nodes)) drawn(name);
    },
    close() {
      size.disconnect();
      tip.hidden = true;
    },
  };
}
