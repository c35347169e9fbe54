//! What a virtual machine is made of.

/// A machine to build.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Name; with `seed` it determines every generated id.
    pub name: String,
    /// Seed of the generated ids.
    pub seed: u64,
    /// How the devices hang together.
    pub shape: Shape,
    /// Model of every GPU.
    pub gpu: GpuSpec,
    /// Virtual functions of each NIC.
    pub vfs_per_nic: u32,
    /// Kernel driver and library version.
    pub driver_version: String,
    /// Whether configuration space is readable (root on a real machine).
    pub config_space: bool,
}

/// PCI fabric of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 8 GPUs, 4 NICs: four root complexes, each with one switch above two GPUs and a NIC. Two sockets. NVSwitch.
    Hgx,
    /// 8 GPUs, 4 NICs: two root complexes, each with a switch above two switches of two GPUs and a NIC. NVSwitch.
    Nested,
    /// 8 GPUs, 4 NICs: two root complexes, each with one switch above four GPUs and two NICs. Two sockets. NVSwitch.
    Quad,
    /// As `Hgx`, in PCI domains of five digits.
    WideDomain,
    /// 4 GPUs, 4 NICs without a switch, each in a domain of its own; GPU memory is not reported. NVLink between all.
    Grace,
    /// 4 GPUs in two NVLink pairs and 2 NICs below the root ports of two root complexes; no switch.
    Pairs,
    /// 1 GPU, no NIC.
    Single,
}

/// A GPU model.
#[derive(Clone, Debug)]
pub struct GpuSpec {
    /// Product name.
    pub model: String,
    /// Frame buffer in bytes; `None` is answered as not supported.
    pub memory_bytes: Option<u64>,
    /// CUDA compute capability.
    pub compute_capability: (u32, u32),
    /// Whether it can be split.
    pub mig_capable: bool,
}

/// What the NVLinks of the machine's GPUs end at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLink {
    /// Every link ends at an NVSwitch.
    Switched,
    /// GPUs 0 and 1, 2 and 3, … are linked by four links each.
    Pairs,
    /// Every GPU is linked to every other.
    Mesh,
    /// No link.
    None,
}

impl NodeSpec {
    /// A machine of the default shape.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            seed: 1,
            shape: Shape::Hgx,
            gpu: GpuSpec::h100(),
            vfs_per_nic: 0,
            driver_version: "570.133.20".to_owned(),
            config_space: true,
        }
    }

    /// The same machine in another shape, with the GPUs that such machines have.
    #[must_use]
    pub fn shaped(mut self, shape: Shape) -> Self {
        self.shape = shape;
        if shape == Shape::Grace {
            self.gpu =
                GpuSpec { model: "NVIDIA GB200".into(), memory_bytes: None, compute_capability: (10, 0), ..self.gpu };
        }
        self
    }

    /// The same machine with other generated ids.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl GpuSpec {
    /// An H100 SXM with 80 GB.
    pub fn h100() -> Self {
        Self {
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: Some(81_559 << 20),
            compute_capability: (9, 0),
            mig_capable: true,
        }
    }
}

impl Shape {
    /// NVLinks of this shape.
    pub fn nvlink(self) -> NvLink {
        match self {
            Self::Hgx | Self::Nested | Self::Quad | Self::WideDomain => NvLink::Switched,
            Self::Grace => NvLink::Mesh,
            Self::Pairs => NvLink::Pairs,
            Self::Single => NvLink::None,
        }
    }
}
