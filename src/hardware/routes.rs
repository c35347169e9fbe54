//! Over which NICs the host's default route goes: its routing tables from procfs, what lies above an interface (bond, bridge, VLAN)
//! from sysfs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::nic::NicInfo;
use super::tree::{Tree, TreeError, is_name};

/// Most bytes read of one table: a node that knows a whole cluster's routes has megabytes.
const MAX_TABLE: u64 = 64 << 20;
/// Most interfaces that may lie above one NIC.
const MAX_ABOVE: usize = 256;
/// Flags of a route: it is in force; it refuses.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

/// Why it is not known which interface has the default route.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// A table cannot be read.
    #[error("the host's routing tables cannot be read: {0}")]
    Unreadable(#[from] TreeError),
    /// A table ends in the middle.
    #[error("the host's routing tables cannot be read: {0}")]
    Broken(#[from] std::io::Error),
    /// The tables are not the host's.
    #[error("the routing tables in {} are of another network namespace than sysfs: it has no interface {interface}", .place.display())]
    Foreign {
        /// Where they were read.
        place: PathBuf,
        /// An interface that sysfs shows.
        interface: String,
    },
}

/// Says of each NIC whether the default route goes over it.
pub fn mark(sysfs: &Tree, net: Result<Tree, TreeError>, nics: &mut [NicInfo]) -> Result<(), RouteError> {
    // Nothing can go over NICs without interfaces.
    let mut interfaces = nics.iter().flat_map(|nic| &nic.netdevs).peekable();
    if interfaces.peek().is_none() {
        return Ok(());
    }
    let net = net?;
    // A container's own procfs shows the container's network, and the host's sysfs the host's.
    if let Some(known) = interfaces_of(&net)?
        && let Some(strange) = interfaces.find(|interface| !known.contains(*interface))
    {
        return Err(RouteError::Foreign { place: net.root().to_owned(), interface: strange.clone() });
    }
    let routes = default_interfaces(&net)?;
    let addresses: BTreeSet<String> =
        routes.iter().filter_map(|route| hardware_address(sysfs, &class(route))).collect();
    for nic in nics {
        nic.carries = over(sysfs, nic, &routes, &addresses);
    }
    Ok(())
}

fn class(interface: &str) -> PathBuf {
    Path::new("class/net").join(interface)
}

fn lines(net: &Tree, table: &str) -> Result<impl Iterator<Item = std::io::Result<String>>, TreeError> {
    Ok(BufReader::new(net.file(table)?.take(MAX_TABLE)).lines())
}

/// Every interface of the namespace. A tree that was copied may lack the list: then its tables are taken as they are.
fn interfaces_of(net: &Tree) -> Result<Option<BTreeSet<String>>, RouteError> {
    let lines = match lines(net, "dev") {
        Err(error) if error.is_absent() => return Ok(None),
        lines => lines?,
    };
    let names = lines.map(|line| Ok(line?.split_once(':').map(|(name, _)| name.trim().to_owned())));
    names.filter_map(std::io::Result::transpose).collect::<Result<_, _>>().map(Some).map_err(RouteError::Broken)
}

/// The interfaces of the default route of least metric: IPv4's, and IPv6's on a host without that. Router advertisements put an
/// IPv6 default route on every interface of some fabrics.
fn default_interfaces(net: &Tree) -> Result<BTreeSet<String>, RouteError> {
    let ipv4 = least(net, "route", |fields| {
        // Interface, destination, gateway, flags, references, use, metric, mask.
        let [interface, "00000000", _, flags, _, _, metric, "00000000", ..] = fields else { return None };
        Some((u32::from_str_radix(flags, 16).ok()?, metric.parse().ok()?, interface))
    });
    match ipv4 {
        Ok(found) if !found.is_empty() => return Ok(found),
        // A kernel without IPv4 routing.
        Err(RouteError::Unreadable(error)) if error.is_absent() && net.exists("ipv6_route") => {}
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let ipv6 = least(net, "ipv6_route", |fields| {
        // Destination and its length, source and its length, next hop, metric, references, use, flags, interface.
        let [destination, "00", _, _, _, metric, _, _, flags, interface] = fields else { return None };
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        destination.bytes().all(|digit| digit == b'0').then_some((hex(flags)?, hex(metric)?, interface))
    });
    match ipv6 {
        Err(RouteError::Unreadable(error)) if error.is_absent() => Ok(BTreeSet::new()),
        found => found,
    }
}

/// Of the routes that `read` takes for default routes (flags, metric, interface), the interfaces of those of least metric.
fn least(
    net: &Tree,
    table: &str,
    read: impl for<'a> Fn(&[&'a str]) -> Option<(u32, u32, &'a str)>,
) -> Result<BTreeSet<String>, RouteError> {
    let (mut best, mut interfaces) = (u32::MAX, BTreeSet::new());
    for line in lines(net, table)? {
        let line = line?;
        let fields: Vec<&str> = line.split_whitespace().collect();
        let Some((flags, metric, interface)) = read(&fields) else { continue };
        if flags & UP == 0 || flags & REJECT != 0 || interface == "lo" || !is_name(interface) || metric > best {
            continue;
        }
        if metric < best {
            interfaces.clear();
        }
        best = metric;
        interfaces.insert(interface.to_owned());
    }
    Ok(interfaces)
}

/// The interface of `routes` that lies on an interface of the NIC, directly or through others. Open vSwitch's bridges do not stand
/// in the tree of interfaces: they have the hardware address of their uplink, as bonds and VLANs do.
fn over(sysfs: &Tree, nic: &NicInfo, routes: &BTreeSet<String>, addresses: &BTreeSet<String>) -> Option<String> {
    let mut above: Vec<String> = nic.netdevs.clone();
    // A device of two ports in a bond names the bond.
    let ports = nic.ports.iter().map(|port| port.number);
    let bond = |port| sysfs.text(format!("class/infiniband/{}/ports/{port}/gid_attrs/ndevs/0", nic.ibdev)).ok();
    above.extend(ports.filter_map(bond).filter(|name| is_name(name)));
    let mut at = 0;
    while let Some(interface) = above.get(at).cloned() {
        at += 1;
        if let Some(route) = routes.get(&interface) {
            return Some(route.clone());
        }
        let own = PathBuf::from(format!("bus/pci/devices/{}/net/{interface}", nic.bdf));
        for place in [own, class(&interface)] {
            let master = sysfs.link(place.join("master")).ok();
            let master = master.and_then(|to| to.file_name()?.to_str().map(str::to_owned));
            let names = sysfs.names(&place).unwrap_or_default();
            let upper = names.iter().filter_map(|name| Some(name.strip_prefix("upper_")?.to_owned()));
            let next: Vec<String> = master.into_iter().chain(upper).filter(|name| !above.contains(name)).collect();
            above.extend(next.into_iter().take(MAX_ABOVE.saturating_sub(above.len())));
        }
    }
    let own = nic.netdevs.iter().filter_map(|netdev| hardware_address(sysfs, &class(netdev)));
    own.into_iter().any(|address| addresses.contains(&address)).then(|| routes.iter().next().cloned()).flatten()
}

/// The hardware address of an interface that has one.
fn hardware_address(sysfs: &Tree, place: &Path) -> Option<String> {
    sysfs.text(place.join("address")).ok().filter(|text| text.bytes().any(|digit| !matches!(digit, b'0' | b':')))
}
