#!/usr/bin/env python3
"""Writes an image of several architectures as one OCI archive: the same bytes from the same files, without a registry.

oci.py OUT VERSION ARCH=FILES[=BASE]...

FILES is what lies upon the base. BASE is a tar of a file system (its layer), or an OCI layout or archive, of which the layers, the
settings and the digest of its architecture are taken; without it the image holds FILES alone. Annotations are read from the variables
REVISION, SOURCE, BASE_NAME and SOURCE_DATE_EPOCH. Prints the digest of the image and those of the bases.
"""
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
CREATED = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
OCI = "application/vnd.oci.image."


def plain(info, mode=None):
    """Nothing of the machine: no owner, no time."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = EPOCH
    info.mode = mode or (0o755 if info.isdir() or info.mode & 0o100 else 0o644)
    return info


def tar_of(root):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        paths = [os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in folders + files]
        for path in sorted(paths):
            tar.add(path, os.path.relpath(path, root), recursive=False, filter=plain)
    return out.getvalue()


class Layout:
    """An OCI layout in a folder or an archive."""

    def __init__(self, path):
        self.path, self.tar = path, None if os.path.isdir(path) else tarfile.open(path)

    def read(self, name):
        if self.tar:
            member = {info.name.removeprefix("./"): info for info in self.tar.getmembers()}[name]
            return self.tar.extractfile(member).read()
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def blob(self, descriptor):
        content = self.read("blobs/" + descriptor["digest"].replace(":", "/"))
        if "sha256:" + hashlib.sha256(content).hexdigest() != descriptor["digest"]:
            sys.exit(f"{self.path}: the blob {descriptor['digest']} has another digest")
        return content

    def manifest(self, arch):
        """Descriptor and manifest of an architecture."""
        found = list(json.loads(self.read("index.json"))["manifests"])
        while found:
            descriptor = found.pop(0)
            content = json.loads(self.blob(descriptor))
            if "manifests" in content:
                found += content["manifests"]
            elif "layers" in content and json.loads(self.blob(content["config"])).get("architecture") == arch:
                return descriptor, content
        sys.exit(f"{self.path} has no image for {arch}")


class Image:
    def __init__(self, version):
        self.version, self.blobs = version, {}

    def add(self, content, media):
        digest = hashlib.sha256(content).hexdigest()
        self.blobs["blobs/sha256/" + digest] = content
        return {"mediaType": media, "digest": "sha256:" + digest, "size": len(content)}

    def add_json(self, value, media):
        return self.add(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media)

    def layer(self, tar, what, config):
        config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(tar).hexdigest())
        config["history"].append({"created": CREATED, "created_by": what})
        return self.add(gzip.compress(tar, 9, mtime=0), OCI + "layer.v1.tar+gzip")

    def architecture(self, arch, files, base):
        config = {"rootfs": {"type": "layers", "diff_ids": []}, "history": [], "config": {}}
        layers, labels = [], {}
        if base and (os.path.isdir(base) or "oci-layout" in [name.removeprefix("./") for name in tarfile.open(base).getnames()]):
            layout = Layout(base)
            descriptor, manifest = layout.manifest(arch)
            config = json.loads(layout.blob(manifest["config"]))
            layers = [self.add(layout.blob(layer), layer["mediaType"]) for layer in manifest["layers"]]
            labels["org.opencontainers.image.base.digest"] = descriptor["digest"]
        elif base:
            with open(base, "rb") as file:
                layers.append(self.layer(file.read(), "base", config))
            labels["org.opencontainers.image.base.digest"] = config["rootfs"]["diff_ids"][0]
        if base:
            print(f"base {arch} {labels['org.opencontainers.image.base.digest']}")
        layers.append(self.layer(tar_of(files), f"baton {self.version}", config))
        texts = {
            "title": "baton", "version": self.version, "licenses": "Apache-2.0", "created": CREATED,
            "revision": os.environ.get("REVISION"), "source": os.environ.get("SOURCE"),
            "base.name": os.environ.get("BASE_NAME") if base else None,
            "description": "Hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the scheduler chose it for",
        }
        labels |= {"org.opencontainers.image." + key: text for key, text in texts.items() if text}
        config |= {"architecture": arch, "os": "linux", "created": CREATED}
        settings = config.get("config") or {}
        config["config"] = settings | {"Entrypoint": ["/usr/bin/baton"], "Labels": labels}
        config["config"].pop("Cmd", None)
        manifest = {
            "schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "annotations": labels, "layers": layers,
            "config": self.add_json(config, OCI + "config.v1+json"),
        }
        return self.add_json(manifest, OCI + "manifest.v1+json") | {"platform": {"architecture": arch, "os": "linux"}}, labels


def main(out, version, *architectures):
    image = Image(version)
    each = [image.architecture(*(of.split("=") + [""])[:3]) for of in architectures]
    common = {key: text for key, text in each[0][1].items() if all(labels.get(key) == text for _, labels in each)}
    index = {"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "annotations": common, "manifests": [of for of, _ in each]}
    top = image.add_json(index, OCI + "index.v1+json")
    print(f"image {top['digest']}")
    # On a node without a registry an import gives the name that the chart asks for.
    top["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"docker.io/library/baton:{version}"}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps({"schemaVersion": 2, "manifests": [top]}, sort_keys=True).encode()}
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted((files | image.blobs).items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(plain(info, 0o644), io.BytesIO(content))


main(*sys.argv[1:])
