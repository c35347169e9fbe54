// Elements. Texts of the cluster become text nodes and never markup.

import { about, now, table } from './store.js';

/** Said aloud also where style.css lays a table out as cards, which it is no table for a screen reader in. */
const roles = { table: 'table', thead: 'rowgroup', tbody: 'rowgroup', tr: 'row', th: 'columnheader', td: 'cell' };

/** An element. `props`: attributes, `class`, and functions as `onclick`; children are elements or texts, and nothing where empty. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  if (roles[tag]) element.setAttribute('role', roles[tag]);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === false) continue;
    if (typeof value === 'function') element[name] = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== ''));
  return element;
}

/** Writes only what differs, so that a selection and the layout stay. */
export function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Keeps one child for each key, in this order. `make(key)` makes it, `update(child, key)` brings it up to date. */
export function keep(parent, keys, make, update) {
  const known = (parent.kept ??= new Map());
  const wanted = new Set(keys);
  for (const [key, child] of known) {
    if (wanted.has(key)) continue;
    child.remove();
    known.delete(key);
  }
  let next = parent.firstChild;
  for (const key of keys) {
    let child = known.get(key);
    if (!child) known.set(key, (child = make(key)));
    update?.(child, key);
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
}

/** `3s`, `12m 5s`, `4h 7m`, `3d 2h`. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${s % 60}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
}

/** An element that counts the time since `at`, in seconds, or until it. */
export function age(at) {
  const element = h('time', { class: 'age' });
  setAge(element, at);
  return element;
}

export function setAge(element, at) {
  element.at = at;
  if (at === undefined) return setText(element, '');
  const left = at - now();
  setText(element, left > 1 ? `in ${span(left)}` : element.ahead ? 'now' : span(-left));
}

setInterval(() => document.querySelectorAll('time.age').forEach((element) => setAge(element, element.at)), 1000);

/** The move of one pod that would make room, in words, where an answer names one. */
export const oneMove = ({ oneMove: found }) =>
  found ? [`${found.pod} from ${found.from} to ${found.to}${found.budget ? `, which the disruption budget ${found.budget} does not allow now` : ''}`] : [];

/** The command in the advice about a lock, marked for `withCommands`. */
export const lockCommand = (advice) => advice.replace(/kubectl annotate node \S+ \S+( --resource-version=\S+)?/, '`$&`');

/** The state of a lock: `held, slow`. */
export const lockState = ({ state, delay }) =>
  delay && delay !== 'usual' ? `${state}, ${delay === 'ahead' ? 'its time is in the future' : delay}` : state;

/** A text in which `commands` can be copied. */
export function withCommands(text) {
  return text.split('`').map((part, index) => {
    if (index % 2 === 0) return part;
    if (!/^(baton|kubectl) /.test(part)) return h('code', {}, part);
    const copy = h('button', { class: 'copy', type: 'button', 'aria-label': `Copy ${part}` }, 'copy');
    copy.onclick = async () => {
      await navigator.clipboard.writeText(part);
      setText(copy, 'copied');
      setTimeout(() => setText(copy, 'copy'), 1500);
    };
    return h('span', { class: 'command' }, h('code', {}, part), copy);
  });
}

/** A list below its title; nothing where it is empty. */
export const items = (title, texts) => (texts?.length ? [h('h3', {}, title), h('ul', {}, texts.map((text) => h('li', {}, withCommands(text))))] : []);

/** A link to the graphs of a node, or of one of its GPUs; the text alone without `--grafana-url`. */
export function graphs(text, node, { device = '$__all', index = '$__all', id = '$__all' } = {}) {
  const values = { node, device, gpu: index, uuid: id };
  const href = about.hello?.grafana?.replace(/\{(\w+)\}/g, (_, place) => encodeURIComponent(values[place]));
  return href ? h('a', { href, target: '_blank', rel: 'noreferrer' }, text) : text;
}

/** A row of a table with a cell of each class. A narrow screen shows those that are `brief` in one line, `why` in the next. */
export function line(classes) {
  const cells = classes.map((name) => h('td', { class: name }));
  return Object.assign(h('tr', {}, cells), { cells_: cells });
}

/** Opens the rest of its row, which only a narrow screen leaves out. */
export function more(name) {
  const button = h('button', { class: 'open more', type: 'button', 'aria-expanded': 'false', 'aria-label': `More of ${name}` });
  button.onclick = () => button.setAttribute('aria-expanded', button.getAttribute('aria-expanded') === 'false');
  return button;
}

/** A note on how old it is what the scheduler said, shown while none answers, and what keeps it; `of` is grey then. */
export function aged(of) {
  const [words, time] = [h('span'), age()];
  const note = h('p', { class: 'first', hidden: true }, words, time);
  return [note, () => {
    const silent = table('problems').scheduler;
    note.hidden = !silent;
    of.classList.toggle('old', Boolean(silent));
    setText(words, silent?.heardAt ? 'No scheduler has answered for ' : 'No scheduler has answered yet.');
    setAge(time, silent?.heardAt);
  }];
}

/** A table with a caption for screen readers; `columns` are its headers, which a narrow screen shows in each cell. */
export function grid(caption, columns) {
  const body = h('tbody');
  const head = h('tr', {}, columns.map((column) => h('th', { scope: 'col' }, column)));
  const element = h('table', {}, h('caption', {}, caption), h('thead', {}, head), body);
  columns.forEach((column, at) => element.style.setProperty(`--c${at + 1}`, JSON.stringify(column)));
  return { element: h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': caption }, element), body };
}

/** The JSON behind a path, or an error with the server's text. */
export async function ask(path, options) {
  const answer = await fetch(path, options);
  const text = await answer.text();
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(text.trim() || `${path}: ${answer.status}`);
  }
  if (!answer.ok) throw new Error(value.error ?? text);
  return value;
}
