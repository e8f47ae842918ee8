"""``make test-image``: the image built by buildah, which needs no daemon, and tried as it is meant to run: not as root, its root read-only.

Base images that cannot be fetched are put together from Debian's packages, which is said. The certificates that this machine trusts
count in the build too. It needs root, buildah, and for stand-ins mmdebstrap; all is kept in ``build/image``.

Usage: python -m scripts.image
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.wheels import answer, run, say
from tests.support.bundled import bundled_path

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build/image"
DOCKER = ROOT / "packaging/docker"
NAME = "localhost/quintet"
MOST_MB = 250
USER = 65532
MIRROR = "http://deb.debian.org/debian"

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

BUILD_BASE = "docker.io/library/debian:trixie-slim"
LAST_BASE = "gcr.io/distroless/python3-debian13:nonroot"
PACKAGES = {
    BUILD_BASE: ("--variant=minbase", "ca-certificates"),
    LAST_BASE: (
        "--variant=extract",
        "base-files,netbase,tzdata,libc6,libgcc-s1,libstdc++6,libgomp1,libssl3t64,zlib1g,libzstd1,libbz2-1.0,libcrypt1,libdb5.3t64,libexpat1,"
        "libffi8,liblzma5,libncursesw6,libreadline8t64,libsqlite3-0,libtinfo6,libuuid1,libpython3.13-minimal,libpython3.13-stdlib,"
        "python3.13-minimal,python3-minimal",
    ),
}
"""What stands in for a base image: of mmdebstrap's ways to lay packages down one, and the packages."""

BUILDAH = ("buildah", "--root", str(HOME / "store"), "--runroot", str(HOME / "run"), "--storage-driver", "vfs")

INSIDE = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
mount --bind "$2" "$1/models"
shift 2
exec "$@"
"""
"""Arguments: the image's root, the folder that is its volume, and what is to run then."""


def base(name: str) -> None:
    """Have a base image: fetched, or a stand-in."""
    known = subprocess.run([*BUILDAH, "inspect", "--type", "image", name], capture_output=True, check=False)
    if known.returncode == 0 or subprocess.run([*BUILDAH, "pull", "--quiet", name], capture_output=True, check=False).returncode == 0:
        return
    say(f"{name} cannot be fetched: a stand-in of Debian's packages takes its place")
    variant, packages = PACKAGES[name]
    with tempfile.TemporaryDirectory() as folder:
        archive, extra = Path(folder) / "root.tar", Path(folder) / "extra"
        run("mmdebstrap", "--quiet", variant, f"--include={packages}", "trixie", archive, MIRROR)
        container = run(*BUILDAH, "from", "scratch").strip()
        run(*BUILDAH, "add", "--quiet", container, archive, "/")
        if name == LAST_BASE:
            (extra / "etc/ssl/certs").mkdir(parents=True)
            (extra / "etc/passwd").write_text(
                f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{USER}:{USER}::/home/nonroot:/sbin/nologin\n"
            )
            shutil.copy(CERTIFICATES, extra / "etc/ssl/certs")
            run(*BUILDAH, "add", "--quiet", container, extra, "/")
        run(*BUILDAH, "commit", "--quiet", "--rm", container, name)


def build() -> None:
    """The image, by its Dockerfile."""
    configured = HOME / "pip.conf"
    configured.write_text("[global]\ncert = /etc/quintet-certificates.crt\n", encoding="utf-8")
    ours = {CERTIFICATES: "/etc/quintet-certificates.crt", configured: "/etc/pip.conf"}
    volumes = [f"--volume={path}:{inside}:ro" for path, inside in ours.items()]
    words = ["--isolation", "chroot", "--format", "docker", "--pull-never", *volumes]
    files = [f"--file={DOCKER}/Dockerfile", f"--ignorefile={DOCKER}/Dockerfile.dockerignore", f"--tag={NAME}"]
    run(*BUILDAH, "build", *words, *files, ROOT)


def tried(mounted: str, config: dict[str, Any]) -> str:
    """What a server out of the image answers, with its own user, variables and entry point."""
    models = HOME / "models"
    models.mkdir(exist_ok=True)
    shutil.copy(bundled_path(), models)
    for path in (models, *models.iterdir()):
        os.chown(path, USER, USER)
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", INSIDE, "sh", mounted, str(models)]
    alone = [shutil.which("chroot") or "chroot", f"--userspec={config['User']}", mounted, *config["Entrypoint"]]
    return answer(*inside, "env", "-i", *config["Env"], *alone)


def main() -> None:
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        sys.exit("error: make test-image needs root and buildah (apt install buildah mmdebstrap)")
    HOME.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        base(name)
    build()
    config = json.loads(run(*BUILDAH, "inspect", "--type", "image", NAME))["Docker"]["config"]
    container = run(*BUILDAH, "from", "--pull-never", NAME).strip()
    try:
        mounted = run(*BUILDAH, "mount", container).strip()
        size = sum(path.lstat().st_size for path in Path(mounted).rglob("*") if path.is_file() and not path.is_symlink()) / 1e6
        say(f"{size:.0f} MB; runs as {config['User']}: {shlex.join([*config['Entrypoint'], *config['Cmd']])}")
        if size >= MOST_MB:
            sys.exit(f"error: the image has {size:.0f} MB, and may have {MOST_MB}")
        if tried(mounted, config) != answer(sys.executable, "-m", "quintet"):
            sys.exit("error: the image answers otherwise than the sources")
    finally:
        run(*BUILDAH, "rm", container)
    say("1 passed, 0 failed")


if __name__ == "__main__":
    main()
