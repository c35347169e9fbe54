//! Whether members can be placed at all, by trying every way: the judge of the scheduler's own search.

use std::collections::BTreeSet;

/// What a pod asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask {
    pub cpus: i64,
    pub pool: Option<&'static str>,
}

/// What a node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room {
    pub pool: Option<&'static str>,
    pub free: i64,
}

/// Of these members at least so many.
#[derive(Debug, Clone)]
pub struct Needs {
    pub least: usize,
    pub asks: Vec<Ask>,
}

type State = (usize, usize, usize, Vec<Room>);

/// `true` when every gang's least can be placed at once.
pub fn fits(gangs: &[Needs], rooms: &[Room]) -> bool {
    let mut gangs = gangs.to_vec();
    gangs.iter_mut().for_each(|gang| gang.asks.sort());
    place(&gangs, (0, 0, 0, rooms.to_vec()), &mut BTreeSet::new())
}

fn place(gangs: &[Needs], (gang, next, placed, mut rooms): State, dead: &mut BTreeSet<State>) -> bool {
    let Some(needs) = gangs.get(gang) else { return true };
    if placed >= needs.least {
        return place(gangs, (gang + 1, 0, 0, rooms), dead);
    }
    if placed + needs.asks.len() - next < needs.least {
        return false;
    }
    rooms.sort();
    let state = (gang, next, placed, rooms);
    if dead.contains(&state) {
        return false;
    }
    let rooms = &state.3;
    let ask = needs.asks[next];
    for (at, room) in rooms.iter().enumerate() {
        let twin = at > 0 && rooms[at - 1] == *room;
        if twin || room.free < ask.cpus || ask.pool.is_some_and(|pool| room.pool != Some(pool)) {
            continue;
        }
        let mut after = rooms.clone();
        after[at].free -= ask.cpus;
        if place(gangs, (gang, next + 1, placed + 1, after), dead) {
            return true;
        }
    }
    if place(gangs, (gang, next + 1, placed, rooms.clone()), dead) {
        return true;
    }
    dead.insert(state);
    false
}

#[test]
fn what_fits_only_one_way_fits() {
    let ask = |cpus| Ask { cpus, pool: None };
    let room = |free| Room { free, pool: None };
    let six = Needs { least: 6, asks: [4, 4, 3, 3, 3, 3].map(ask).to_vec() };
    assert!(fits(std::slice::from_ref(&six), &[room(10), room(10)]));
    assert!(!fits(&[six], &[room(10), room(9)]));
}
