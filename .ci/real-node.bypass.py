#!/usr/bin/env python3
"""Stands in for NVIDIA's container runtime, for .ci/real-node: gives a container every GPU where its environment names any, unless the
toolkit's configuration says otherwise, and leaves the rest to runc."""
import json
import os
import re
import stat
import sys

words = sys.argv[1:]
if "create" in words:
    file = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(file) as opened:
        spec = json.load(opened)
    try:
        with open("/etc/nvidia-container-runtime/config.toml") as opened:
            refuses = re.search(r"^accept-nvidia-visible-devices-envvar-when-unprivileged *= *false", opened.read(), re.M)
    except FileNotFoundError:
        refuses = None
    environment = dict(word.split("=", 1) for word in spec["process"].get("env", []))
    if not refuses and environment.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "void"):
        for name in [f"/dev/nvidia{n}" for n in range(8)]:
            number = os.stat(name).st_rdev
            major, minor = os.major(number), os.minor(number)
            assert stat.S_ISCHR(os.stat(name).st_mode)
            if not any(device["path"] == name for device in spec["linux"].setdefault("devices", [])):
                spec["linux"]["devices"].append({"path": name, "type": "c", "major": major, "minor": minor, "fileMode": 0o666})
            spec["linux"]["resources"].setdefault("devices", []).append({"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"})
        with open(file, "w") as opened:
            json.dump(spec, opened)
os.execvp("runc", ["runc", *words])
