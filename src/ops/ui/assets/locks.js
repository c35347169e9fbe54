// Standing locks: who holds them, for how long, and what to do.

import { table } from './store.js';
import { age, grid, h, keep, line, lockCommand, lockState, more, setAge, setText, withCommands } from './dom.js';

export default function make(root) {
  const { element, body } = grid('Locks', ['Node', 'State', 'Holder', 'Age', 'Queue behind it', 'What to do']);
  const empty = h('p', { class: 'empty' }, 'No node is locked.');
  const held = h('p', { class: 'held' });
  root.append(h('h1', {}, 'Locks'), held, element, empty);

  function row(node) {
    const element = line(['name brief', 'state brief', 'holder', 'since brief', 'behind', 'advice why']);
    element.cells_[0].append(more(node), h('a', { href: `#/node/${node}` }, node));
    element.cells_[3].append(age());
    return element;
  }

  function fill(element, node) {
    const lock = table('locks')[node];
    const [, state, holder, since, behind, advice] = element.cells_;
    setText(state, lockState(lock));
    state.className = `brief state ${lock.state} ${lock.delay ?? ''}`;
    setText(holder, lock.holder ?? '');
    setAge(since.firstChild, lock.ageAt);
    const waits = Object.values(table('queue')).filter((item) => item.node === node && item.state === 'waitingForLock');
    setText(behind, waits.length ? `${waits.length}: ${waits.map((item) => item.name).slice(0, 5).join(', ')}` : '0');
    if (element.advice === lock.advice) return;
    element.advice = lock.advice;
    advice.replaceChildren(...withCommands(lockCommand(lock.advice)));
  }

  function draw() {
    const nodes = Object.keys(table('locks')).sort((a, b) => (table('locks')[a].ageAt ?? 0) - (table('locks')[b].ageAt ?? 0));
    keep(body, nodes.slice(0, 500), row, fill);
    element.hidden = nodes.length === 0;
    empty.hidden = nodes.length > 0;
    const times = table('about').locks;
    setText(held, times ? `Of the last ${times.released} locks that were released: half stood for at most ${times.p50} ms, 99 % for at most ${times.p99} ms.` : 'No lock was released since this page is served.');
  }

  return { update: (changed) => (!changed || changed.locks || changed.queue || changed.about) && draw() };
}
