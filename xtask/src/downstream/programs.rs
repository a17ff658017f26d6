//! Projects of a program alone, and those that users would write: a framework's backend, and an inference server that loads a model.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use xshell::{Shell, cmd};

/// A program and what it depends on.
pub(super) struct Project<'a> {
    pub(super) name: &'a str,
    /// Crates of this workspace without their prefix, `""` for the facade, each with its features.
    pub(super) crates: &'a [(&'a str, &'a str)],
    pub(super) program: &'a str,
    /// Text that it must print.
    pub(super) prints: &'a str,
}

impl Project<'_> {
    /// Writes, builds and runs it. With `with_cust`, cust finds a directory that looks like a toolkit; without, none.
    pub(super) fn run(
        &self,
        sh: &Shell,
        root: &Path,
        base: &Path,
        target: &Path,
        with_cust: bool,
    ) -> Result<()> {
        let Self { name, crates, program, prints } = self;
        let folder = base.join(name);
        fs::create_dir_all(folder.join("src"))?;
        fs::create_dir_all(folder.join("toolkit").join("lib64"))?;
        let root_text = root.display().to_string().replace('\\', "/");
        let depend = |(name, features): &(&str, &str)| match *name {
            "" => format!(
                "transload = {{ path = \"{root_text}/crates/transload\", features = [{features}] }}\n"
            ),
            name => format!(
                "transload-{name} = {{ path = \"{root_text}/crates/{name}\", features = [{features}] }}\n"
            ),
        };
        let dependencies: String = crates.iter().map(depend).collect();
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\n{dependencies}\n[workspace]\n"
        );
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::write(folder.join("src/main.rs"), program)?;
        fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
        fs::copy(root.join("rust-toolchain.toml"), folder.join("rust-toolchain.toml"))?;
        let _in_folder = sh.push_dir(&folder);
        let _shared = sh.push_env("CARGO_TARGET_DIR", target);
        let command = cmd!(sh, "cargo run --quiet").quiet().env_remove("CUDA_LIBRARY_PATH");
        let command =
            if with_cust { command.env("CUDA_LIBRARY_PATH", folder.join("toolkit")) } else { command };
        super::expect_output(command, prints).with_context(|| format!("the project {name}"))
    }
}

/// A framework's backend over the facade.
const FRAMEWORK: &str = r#"
use transload::{Array, DeviceId, MemoryKind, Result, Runtime, cuda::CudaStream};

struct Storage {
    rt: Runtime,
    stream: CudaStream,
    elements: Array<f32>,
}

impl Storage {
    fn on_host(rt: &Runtime, elements: Vec<f32>) -> Result<Self> {
        Ok(Self { rt: rt.clone(), stream: rt.cuda(0)?.stream()?, elements: rt.host(elements)? })
    }

    fn to_device(&self, device: DeviceId) -> Result<Self> {
        let kind = if device.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device };
        let elements = self.rt.alloc(device, kind, self.elements.len())?;
        self.rt.copy(&self.elements, &elements).wait()?;
        Ok(Self { rt: self.rt.clone(), stream: self.stream.clone(), elements })
    }

    fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        let elements = self.elements.slice(start..start + len)?;
        Ok(Self { rt: self.rt.clone(), stream: self.stream.clone(), elements })
    }

    /// Within the device, in the order of the framework's stream.
    fn copy_from(&self, other: &Self) -> Result<()> {
        self.rt.copy(&other.elements, &self.elements).on(&self.stream).submit().refusal().map_or(Ok(()), |e| Err(e.clone()))
    }

    fn to_vec(&self) -> Result<Vec<f32>> {
        self.rt.download_into(&self.elements, vec![0.0; self.elements.len()]).wait()
    }
}

fn main() -> Result<()> {
    transload_cuda_sim::install().unwrap();
    let _gpu = transload_cuda_sim::SimDevice::builder().build();
    let rt = Runtime::discover()?;
    let x = Storage::on_host(&rt, (0..1000).map(|i| i as f32).collect())?.to_device(DeviceId::Cuda(0))?;
    x.narrow(0, 500)?.copy_from(&x.narrow(500, 500)?)?;
    assert_eq!(x.narrow(499, 2)?.to_vec()?, [999.0, 500.0]);
    println!("framework: ok, on {}", x.elements.place());
    drop(x);
    rt.drain()
}"#;

/// An inference server's load of a model, and its first use of it.
const SERVER: &str = r##"
use std::{error::Error, fs};
use transload::{DeviceId, MemoryKind, Place, Runtime, load::LoadOptions};

fn main() -> Result<(), Box<dyn Error>> {
    transload_cuda_sim::install()?;
    let _gpu = transload_cuda_sim::SimDevice::builder().build();
    let header = br#"{"bias":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"table":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend((0..8).flat_map(|i| (i as f32).to_le_bytes()));
    fs::write("model.safetensors", file)?;

    let rt = Runtime::discover()?;
    let options = LoadOptions::new(Place::new(DeviceId::Cuda(0), MemoryKind::Device)).checksum(true);
    let model = rt.load("model.safetensors", &options)?;
    for tensor in model.tensors() {
        println!("{} {} {:?} at {}", tensor.name(), tensor.dtype(), tensor.shape(), tensor.buffer().place());
    }
    let table = model.tensor("table").ok_or("no table in the model")?;
    let elements = table.array::<f32>()?;
    assert_eq!(*rt.download(&elements.slice(2..)?).wait()?, [6.0, 7.0]);
    println!("server: ok, {}", model.report());
    drop((model, elements));
    rt.drain()?;
    Ok(())
}"##;

/// Builds and runs the users' projects, on the software driver.
pub(super) fn run(sh: &Shell, root: &Path, base: &Path, target: &Path) -> Result<()> {
    let framework = Project {
        name: "framework",
        crates: &[("", r#""cuda""#), ("cuda-sim", "")],
        program: FRAMEWORK,
        prints: "framework: ok, on cuda:0/device",
    };
    let server = Project {
        name: "server",
        crates: &[("", r#""cuda", "safetensors""#), ("cuda-sim", "")],
        program: SERVER,
        prints: "server: ok",
    };
    for project in [framework, server] {
        project.run(sh, root, base, target, true)?;
        println!("downstream: the project {} builds and runs", project.name);
    }
    Ok(())
}
