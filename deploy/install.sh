#!/bin/bash
# Installs p2pfl as a service on 64-bit Raspberry Pi OS or Debian. It may be run again at any time: a second run updates.
set -euo pipefail
shopt -s nullglob
umask 022

USER_NAME=p2pfl
UNIT='p2pfl@.service'
ANSWERS_WITHIN_S=900 # TimeoutStartSec of the unit: a node may read large tables first
# On aarch64, torch 2.10 dies with "illegal instruction" on a Raspberry Pi 3 or 4, which lack the atomics of ARMv8.1,
# and from 2.11 on it brings CUDA along, unless it comes from PyTorch's own CPU index.
AARCH64_TORCH='torch<2.10'
AARCH64_TORCH_OF_INDEX='torch!=2.10.*'

usage() {
    cat <<'END'
Usage: install.sh [OPTIONS] [FEDERATION]

Installs p2pfl for systemd and, if FEDERATION is given, the node of this machine. FEDERATION is a folder with
federation.toml, what its task needs, and the folder of one node: its node.toml and its secret node.key.
It holds files and folders: a symbolic link in it may only name, by a relative path, something else in it.
Without FEDERATION only the software is installed or updated. A second run changes only what differs.

  --node NAME        which node this machine is; needed if FEDERATION holds no node's folder, or several
  --source WHAT      a wheel, a checkout or the name of a distribution; by default the checkout that this
                     script is in, or else p2pfl-gossip. In a bundle of `p2pfl deploy push` it is the bundle,
                     which needs no network: its hashes are compared, an environment is made and tried beside
                     the one that runs, then they are switched; if the node does not answer, switched back
  --torch cpu        torch without CUDA (the default); on aarch64 that is torch before 2.10, elsewhere
                     it needs --torch-index
  --torch default    the newest torch that pip finds; it may bring gigabytes of CUDA libraries
  --torch none       no torch: for tasks that do not use it, or where it is there already
  --torch-index URL  one more index to look for torch in (pip's --extra-index-url)
  --python PATH      the Python to use, 3.11 or newer; python3 by default
  --start            enable the node's service, start it now and at every boot
  --rollback         switch to the environment before, which a bundle has replaced; needs --node
  --probe SECONDS    print what this machine is, for `p2pfl deploy push`, whose clock says SECONDS; change nothing
  --uninstall        stop the service and remove the software; keys, state and settings stay
  --root DIR         put everything below DIR, as any user, without a system user and without systemctl
  --dry-run          print the steps and take none
  -h, --help         this text

What is where:
  /opt/p2pfl/venv                       the software; owned by root. From a bundle it is a link into
                                        /opt/p2pfl/env, and /opt/p2pfl/previous is the one before
  /usr/local/bin/p2pfl                  a link to its command
  /etc/systemd/system/p2pfl@.service    the service; its instance is the node's name
  /var/lib/p2pfl                        the federation: not in /etc, since the node's state stands in its folder;
                                        owned by root, the node reads it
  /var/lib/p2pfl/NAME                   node.toml, node.key and state; owned by the user p2pfl, secret to others
  /var/lib/p2pfl/.previous              what a second run has replaced; it can be installed again

A federation that `p2pfl check` refuses is not installed: what was there stays, and runs.

Exit codes: 0 done, 2 this call, this machine or this federation cannot work, others: a step failed.
END
}

# Whoever listens may go away: what has begun goes on.
trap '' HUP PIPE
say() { printf '%s\n' "$*" 2>/dev/null || true; }
step() { say "* $*"; } # what `p2pfl deploy push` shows
warn() { printf 'warning: %s\n' "$*" >&2 || true; }
refuse() {
    printf 'error: %s\n' "$*" >&2 || true
    exit 2
}

# Prints a step, and takes it unless this is a rehearsal.
run() {
    say "+ $*"
    if [ -z "$dry_run" ]; then "$@"; fi
}

# What touches the node's own folder runs as the node's user: root must not follow what that user may have put there.
run_as_node() {
    if [ -n "$root" ]; then run "$@"; else run runuser -u "$USER_NAME" -- "$@"; fi
}

systemctl_run() {
    if [ -z "$root" ]; then run systemctl "$@"; fi
}

# -- what was asked for ---------------------------------------------------------------------------------------------

parse_arguments() {
    federation='' node='' source='' torch=cpu torch_index='' python=python3 root=''
    start='' uninstall='' dry_run='' rollback='' probe='' bundle='' shared=()
    while [ $# -gt 0 ]; do
        case $1 in
            --node | --source | --torch | --torch-index | --python | --root | --probe)
                [ $# -ge 2 ] && [ -n "$2" ] || refuse "$1 needs a value; see --help"
                set_option "$1" "$2"
                shift
                ;;
            --start) start=yes ;;
            --uninstall) uninstall=yes ;;
            --rollback) rollback=yes ;;
            --dry-run) dry_run=yes ;;
            -h | --help)
                usage
                exit 0
                ;;
            -*) refuse "no such option: $1; see --help" ;;
            *)
                [ -z "$federation" ] || refuse "one FEDERATION, not also $1"
                federation=$1
                ;;
        esac
        shift
    done
    check_arguments
}

set_option() {
    case $1 in
        --node) node=$2 ;;
        --source) source=$2 ;;
        --torch) torch=$2 ;;
        --torch-index) torch_index=$2 ;;
        --python) python=$2 ;;
        --root) root=$2 ;;
        --probe) probe=$2 ;;
    esac
}

check_arguments() {
    case $torch in
        cpu | default | none) ;;
        *) refuse "--torch $torch: allowed are cpu, default and none" ;;
    esac
    case $node in
        -* | .* | *[!A-Za-z0-9._-]*) refuse "--node $node: not the name of a node" ;;
    esac
    [ -z "$rollback" ] || [ -n "$node" ] || refuse "--rollback needs --node NAME"
    [ -z "$start" ] || [ -z "$root" ] || refuse "--start starts a service of this machine: not with --root"
    if [ -n "$root" ]; then
        case $root in
            /) root='' ;;
            /*) root=${root%/} ;;
            *) root=$PWD/${root%/} ;;
        esac
    fi
    prefix=$root/opt/p2pfl
    venv=$prefix/venv
    software=$venv # what checks a federation
    unit_file=$root/etc/systemd/system/$UNIT
    command_link=$root/usr/local/bin/p2pfl
    home=$root/var/lib/p2pfl
    staged=$home/.new
    previous=$home/.previous
}

# -- what this machine is -------------------------------------------------------------------------------------------

check_machine() {
    [ "$(uname -s)" = Linux ] || refuse "this is for Linux with systemd"
    if [ -z "$root$dry_run" ]; then
        [ "$(id -u)" -eq 0 ] || refuse "this changes the system: run it with sudo, or look first with --dry-run"
        [ -d /run/systemd/system ] || refuse "systemd does not run here"
        local lock
        exec {lock}>/run/p2pfl-install.lock
        [ -n "$probe" ] || flock -n "$lock" || refuse "another install.sh is at work here: wait for its end"
    fi
}

check_python() {
    command -v "$python" >/dev/null || refuse "$python is not there: apt install python3 python3-venv"
    bits=$("$python" -c 'import struct; print(8 * struct.calcsize("P"))')
    [ "$bits" = 64 ] || refuse "this is a $bits-bit system, whatever its kernel: torch needs the 64-bit image"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        refuse "$("$python" --version) is too old, 3.11 is the oldest that works: Raspberry Pi OS 12 (bookworm) has it"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        refuse "this Python cannot make virtual environments: apt install python3-venv"
}

# Prints one line: processor, Python, C library, kB free where the software and its bundle go.
probe() {
    local python_version libc free off=$(($(date +%s) - probe))
    [ "${off#-}" -le 86400 ] ||
        refuse "the clock is $((off / 86400)) days from that of your computer; there: ssh HOST sudo date -s @\$(date +%s)"
    python_version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || refuse "this system has no glibc, for which the packages are built"
    free=$(df -Pk /opt /var/tmp | awk 'NR > 1 && (least == "" || $4 < least) { least = $4 } END { print least }')
    say "probe $(uname -m) $python_version ${libc#glibc } $free"
}

# -- what to install ------------------------------------------------------------------------------------------------

choose_source() {
    here=$(cd "$(dirname "$0")" && pwd)
    [ -f "$here/$UNIT" ] || refuse "$UNIT is missing beside $0"
    if [ -z "$source" ] && [ -f "$here/KIND" ]; then
        bundle=$here
        return
    fi
    if [ -z "$source" ]; then
        source=p2pfl-gossip
        if [ -f "$here/../pyproject.toml" ]; then source=$(dirname "$here"); fi
    fi
    if [ -e "$source" ]; then
        source=$(realpath "$source")
    else
        case $source in */* | *.whl) refuse "--source $source: there is no such file or folder" ;; esac
    fi
}

# Sets `fresh`, the environment that is to be. A file without a hash counts as one with a wrong hash.
check_bundle() {
    local processor made_for libc version listed
    step "comparing hashes"
    listed=$(sed 's/^[0-9a-f]*  //' "$bundle/SHA256SUMS" | sort)
    [ "$listed" = "$(cd "$bundle" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort)" ] ||
        refuse "$bundle: the files are not those of SHA256SUMS: make the bundle anew"
    (cd "$bundle" && sha256sum --strict --quiet -c SHA256SUMS) >&2 ||
        refuse "$bundle: a file is not what its hash says: delete the bundle and push again; if that does not help," \
            "the memory card is failing"
    read -r processor made_for libc version <"$bundle/KIND"
    [ "$processor" = "$(uname -m)" ] || refuse "the bundle is for $processor; this machine is $(uname -m)"
    "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$made_for')" ||
        refuse "the bundle is for Python $made_for; here is $("$python" --version)"
    printf '%s\n' "glibc $libc" "$(getconf GNU_LIBC_VERSION)" | sort -CV ||
        refuse "the bundle is for glibc $libc or newer; here is $(getconf GNU_LIBC_VERSION)"
    fresh=env/$version-$(sha256sum "$bundle/SHA256SUMS" | cut -c 1-12)
}

# Sets `extra` and `torch_spec`.
choose_torch() {
    local extras=torch
    torch_spec=''
    machine=$(uname -m)
    case $torch:$machine in
        none:*) extras='' ;;
        cpu:aarch64 | cpu:arm64)
            torch_spec=$AARCH64_TORCH
            if [ -n "$torch_index" ]; then torch_spec=$AARCH64_TORCH_OF_INDEX; fi
            ;;
        cpu:*)
            [ -n "$torch_index" ] ||
                refuse "--torch cpu: on $machine a torch without CUDA is in PyTorch's own CPU index only:" \
                    "give it with --torch-index URL, or choose --torch default or none"
            ;;
    esac
    if wants_discovery; then extras=${extras:+$extras,}lan; fi
    extra=${extras:+[$extras]}
}

# Nodes that find each other on the LAN need python-zeroconf.
wants_discovery() {
    local folder
    for folder in "$federation" "$home"; do
        if [ -n "$folder" ] && grep -Eqs '^[[:space:]]*discovery[[:space:]]*=[[:space:]]*true' \
            "$folder/federation.toml" "$folder"/*/node.toml; then return 0; fi
    done
    return 1
}

# Sets `node` and `has_key`; `node` stays empty where only the software is wanted.
choose_node() {
    has_key=''
    if [ -z "$federation" ]; then
        [ -z "$node" ] || [ -n "$start" ] || refuse "--node $node without FEDERATION does something with --start only"
        [ -z "$start" ] || [ -n "$node" ] || refuse "--start needs FEDERATION, or --node NAME for one that is installed"
        return
    fi
    [ -f "$federation/federation.toml" ] || refuse "$federation: there is no federation.toml in it"
    federation=$(realpath "$federation")
    if [ -z "$node" ]; then
        for folder in "$federation"/*/; do
            is_node_folder "$folder" || continue
            [ -z "$node" ] || refuse "$federation has several nodes' folders: say with --node which one is this machine"
            node=$(basename "$folder")
        done
        [ -n "$node" ] || refuse "$federation has no node's folder: say with --node which node this machine is"
    fi
    check_key
    [ "$federation" != "$(realpath -m "$home")" ] || return 0
    hold_federation
    choose_shared
    check_contents
}

# Sets `held`: this very folder, whatever its owner puts under its name between the look and the copy.
hold_federation() {
    local folder
    exec {folder}<"$federation"
    held=/proc/$$/fd/$folder
}

is_node_folder() { [ -f "$1/node.key" ] || [ -f "$1/node.toml" ]; }

check_key() {
    if [ -f "$federation/$node/node.key" ]; then has_key=yes; fi
    if [ -n "$has_key" ] && [ -f "$home/$node/node.key" ]; then
        cmp -s "$federation/$node/node.key" "$home/$node/node.key" ||
            refuse "$home/$node/node.key is another key than the new one: move it away if it is not needed any more"
    fi
    [ -n "$has_key" ] || [ -f "$home/$node/node.key" ] ||
        refuse "$federation/$node/node.key is missing: make it with \`p2pfl key $federation/$node/node.key\`," \
            "and put what that prints into federation.toml on every machine"
}

# Sets `shared`: what all nodes have in common. The folders of other nodes stay behind: their keys are no business of
# this machine, nor is the admin key, which changes the members.
choose_shared() {
    local entry name
    shared=()
    for entry in "$held"/*; do
        name=$(basename "$entry")
        if is_node_folder "$entry" || is_node_folder "$home/$name"; then continue; fi
        case $name in "$node" | __pycache__ | admin.key | invites.json) continue ;; esac
        shared+=("./$name")
    done
}

# Root copies what whoever made the folder may not read: so nothing in it may stand for a file outside. A hard link can
# be told only by its owner; and where there are devices and pipes, somebody is up to something.
check_contents() {
    local entry owner copied=("${shared[@]}")
    owner=$(stat -L -c %u "$held")
    if [ -d "$federation/$node" ] || [ -L "$federation/$node" ]; then copied+=("./$node"); fi
    while IFS= read -r -d '' entry; do
        entry=$federation/${entry#./}
        if [ -L "$entry" ]; then
            check_link "$entry"
        elif [ -f "$entry" ]; then
            refuse "$entry: a second name of a file that belongs to somebody else: put a copy there"
        else
            refuse "$entry: neither a file nor a folder: take it away"
        fi
    done < <(
        cd "$held" && find -P "${copied[@]}" \( -path "./$node/state" -o -name __pycache__ \) -prune -o \
            \( ! -type f ! -type d -o -type f -links +1 ! -uid "$owner" \) -print0
    )
}

check_link() {
    local advice='put the file itself there, or name its path in federation.toml or node.toml'
    case $(readlink "$1") in /*) refuse "$1: a link by an absolute path, which would leave the folder: $advice" ;; esac
    case $(realpath -m "$1") in "$federation"/*) ;; *) refuse "$1: a link that leaves the folder: $advice" ;; esac
}

# -- the steps ------------------------------------------------------------------------------------------------------

make_user() {
    if [ -n "$root" ] || getent passwd "$USER_NAME" >/dev/null; then return; fi
    run useradd --system --user-group --no-create-home --home-dir "$home" --shell /usr/sbin/nologin "$USER_NAME"
}

# Files must not change under a running node. What is stopped here is started again however this script ends.
stop_nodes() {
    stopped=()
    if [ -n "$root" ] || [ ! -d /run/systemd/system ]; then return; fi
    mapfile -t stopped < <(
        systemctl list-units --plain --no-legend --state=active,activating,reloading 'p2pfl@*' | cut -d ' ' -f 1
    )
    [ "${#stopped[@]}" -gt 0 ] || return 0
    trap start_nodes EXIT
    run systemctl stop "${stopped[@]}"
}

start_nodes() {
    trap - EXIT
    if [ "${#stopped[@]}" -gt 0 ]; then run systemctl start "${stopped[@]}"; fi
    stopped=()
}

install_software() {
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir)
    local wanted=("$source$extra")
    if [ -n "$torch_spec" ]; then wanted+=("$torch_spec"); fi
    if [ -n "$torch_index" ]; then wanted+=(--extra-index-url "$torch_index"); fi
    run install -d -m 755 "$prefix"
    run rm -f "$venv/.complete" # it is no bundle's any more
    # Also after an upgrade of the system, which takes away the Python that the environment was made with.
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then run "$python" -m venv --clear "$venv"; fi
    run "${pip[@]}" install --upgrade "${wanted[@]}"
    case $source in
        # pip leaves a wheel of the same version alone, though it may have been built anew.
        *.whl) run "${pip[@]}" install --force-reinstall --no-deps "$source" ;;
    esac
    warn_of_cuda
    link_command
}

warn_of_cuda() {
    if [ "$torch" != cpu ] || [ -n "$dry_run" ]; then return; fi
    "$venv/bin/python" - <<'END' || warn "CUDA libraries came along: $venv is gigabytes larger than a CPU needs"
import sys
from importlib.metadata import distributions
sys.exit(any(found.name.lower().startswith("nvidia-") for found in distributions()))
END
}

link_command() {
    run install -d -m 755 "$(dirname "$command_link")"
    if [ -e "$command_link" ] && [ ! -L "$command_link" ]; then
        warn "$command_link is not ours and stays; the command is $venv/bin/p2pfl"
    else
        run ln -sfn "$venv/bin/p2pfl" "$command_link"
    fi
}

install_unit() {
    run install -d -m 755 "$(dirname "$unit_file")"
    run install -m 644 "$1" "$unit_file"
    systemctl_run daemon-reload
}

# A new federation is checked as a whole before anything of it takes the place of what is there.
install_federation() {
    stage_federation
    place_federation
}

stage_federation() {
    local owner=() nodes_owner=()
    if [ -z "$root" ]; then owner=(-o root -g "$USER_NAME") nodes_owner=(-o "$USER_NAME" -g "$USER_NAME"); fi
    run install -d -m 750 "${owner[@]}" "$home"
    run install -d -m 700 "${nodes_owner[@]}" "$home/$node"
    warn_of_loopback
    if [ "$federation" = "$(realpath -m "$home")" ]; then
        run_as_node "$software/bin/p2pfl" check "$home"
        return
    fi
    run rm -rf "$staged"
    run install -d -m 750 "${owner[@]}" "$staged"
    run install -d -m 700 "${nodes_owner[@]}" "$staged/$node"
    copy_shared
    if [ -d "$federation/$node" ]; then copy_own; fi
    check_staged
}

place_federation() {
    [ -d "$staged" ] || [ -n "$dry_run" ] || return 0
    if differs; then replace_by_staged; else say "$home has all of this already"; fi
    run rm -rf "$staged"
}

# Prints what it does. `tar` follows no link while it reads, not even one that has been put there since it was looked
# for: `cp` would.
pour() {
    say "+ ${give[*]} | ${take[*]}"
    if [ -z "$dry_run" ]; then "${give[@]}" | "${take[@]}"; fi
}

copy_shared() {
    local give=(tar -C "$held" -c "--mode=u=rwX,g=rX,o=" --exclude=__pycache__ "${shared[@]}")
    local take=(tar -C "$staged" -x --no-same-owner)
    local name
    pour
    if [ -n "$root" ]; then return; fi
    for name in "${shared[@]}"; do run chown -hR "root:$USER_NAME" "$staged/${name#./}"; done
}

# Any state stays behind: a state in two places would contradict itself.
copy_own() {
    local give=(tar -C "$held" -c "--mode=u=rwX,go=" --anchored "--exclude=./$node/state")
    give+=(--no-anchored --exclude=__pycache__ "./$node")
    local take=(tar -C "$staged/$node" -x --no-same-owner --no-overwrite-dir --strip-components=2)
    # Root must not follow what the node's user may have put into its folder.
    if [ -z "$root" ]; then take=(runuser -u "$USER_NAME" -- "${take[@]}"); fi
    pour
}

# What the node has already and does not get anew, its key say, is lent to the copy for the check, by links. So is its
# state, whose space it may use again: a folder, whose files are links, for a state folder that is a link is refused.
check_staged() {
    local entry name lent=() fine=yes
    for entry in "$home/$node"/*; do
        name=$(basename "$entry")
        if [ -e "$staged/$node/$name" ] || [ -L "$staged/$node/$name" ]; then continue; fi
        lent+=("$staged/$node/$name")
        if [ "$name" = state ]; then
            # A node that runs replaces files meanwhile.
            lend_state "$entry" || lend_state "$entry" || lend_state "$entry" ||
                warn "$entry: the state is on a volume of its own, and was not looked at"
        else
            run_as_node ln -s "$entry" "$staged/$node/$name"
        fi
    done
    run_as_node "$software/bin/p2pfl" check "$staged" || fine=''
    if [ "${#lent[@]}" -gt 0 ]; then run_as_node rm -rf "${lent[@]}"; fi
    if [ -z "$fine" ]; then
        run rm -rf "$staged"
        refuse "$federation cannot work, as said above: nothing of it was installed, $home is as it was"
    fi
}

lend_state() {
    run_as_node cp -al "$1" "$staged/$node/state" 2>/dev/null && return
    run_as_node rm -rf "$staged/$node/state"
    return 1
}

# Whether anything of the copy is not there yet.
differs() {
    local entry
    if [ -n "$dry_run" ]; then return 0; fi
    for entry in "$staged"/* "$staged/$node"/*; do
        if [ "$entry" = "$staged/$node" ]; then continue; fi
        diff -rq --no-dereference "$entry" "$home${entry#"$staged"}" >/dev/null 2>&1 || return 0
    done
    return 1
}

# What was there before goes to a folder of its own, from which it can be installed like any federation.
replace_by_staged() {
    local owner=() nodes_owner=() entry name
    if [ -z "$root" ]; then owner=(-o root -g "$USER_NAME") nodes_owner=(-o "$USER_NAME" -g "$USER_NAME"); fi
    placed=()
    run rm -rf "$previous"
    run install -d -m 750 "${owner[@]}" "$previous"
    run install -d -m 700 "${nodes_owner[@]}" "$previous/$node"
    for entry in "$staged/$node"/*; do
        name=$(basename "$entry")
        if [ "$name" = node.key ] && [ -e "$home/$node/node.key" ]; then continue; fi
        if [ -e "$home/$node/$name" ]; then run_as_node mv -T "$home/$node/$name" "$previous/$node/$name"; fi
        run_as_node mv -T "$entry" "$home/$node/$name"
        placed+=("$node/$name")
    done
    for entry in "${shared[@]}"; do
        name=${entry#./}
        if [ -e "$home/$name" ]; then run mv -T "$home/$name" "$previous/$name"; fi
        run mv -T "$staged/$name" "$home/$name"
        placed+=("$name")
    done
    if [ -f "$previous/federation.toml" ]; then
        say "what was there before is kept in $previous; to go back: $0 --node $node $previous"
    else
        run rm -rf "$previous"
    fi
}

warn_of_loopback() {
    local this_machine='[[:space:]]*=[[:space:]]*"(127[.]|localhost:|[[]::1])'
    if grep -Eqs "^[[:space:]]*listen$this_machine" "$federation/$node/node.toml"; then
        warn "$node/node.toml: \`listen\` lets no other machine in; \"0.0.0.0:PORT\" does"
    fi
    if grep -Eq "^[[:space:]]*address$this_machine" "$federation/federation.toml"; then
        warn "federation.toml: an \`address\` of this machine alone; other machines cannot dial it"
    fi
}

start_node() {
    [ -n "$start" ] || return 0
    # Earlier failures may have used up the starts that the service has.
    run systemctl reset-failed 'p2pfl@*'
    run systemctl enable --now "p2pfl@$node.service"
}

# -- a second environment beside the first ----------------------------------------------------------------------------

# Prints the environment in use, relative to $prefix.
current() {
    if [ -L "$venv" ]; then readlink "$venv"; elif [ -d "$venv" ]; then echo env/before; fi
}

make_environment() {
    software=$prefix/$fresh
    local pip=("$software/bin/python" -m pip --disable-pip-version-check --no-cache-dir)
    if [ -f "$software/.complete" ] && "$software/bin/python" -c 'import p2pfl' 2>/dev/null; then return; fi
    step "making the environment $software"
    if [ -z "$dry_run" ]; then trap 'rm -rf "$software"' EXIT; fi
    run install -d -m 755 "$prefix" "$prefix/env"
    run "$python" -m venv --clear "$software"
    run "${pip[@]}" install --quiet --no-index "$bundle"/wheels/*.whl
    run install -m 644 "$here/$UNIT" "$software/$UNIT"
    step "trying it"
    run_as_node "$software/bin/p2pfl" --version
    # Here a torch with instructions that this processor lacks dies, and not in the service.
    run_as_node "$software/bin/python" -c \
        'import p2pfl.node.application, importlib.util as u; u.find_spec("torch") and __import__("torch")'
    run touch "$software/.complete"
    run sync -f "$prefix"
}

point() {
    run ln -sfn "$2" "$1.new"
    run mv -fT "$1.new" "$1"
}

# Switches to an environment, and to the staged federation; back if the node does not answer.
switch_to() {
    local to=$1
    old=$(current) placed=() answered=''
    if [ "$to" = "$old" ] && { [ ! -d "$staged" ] || ! differs; }; then
        run rm -rf "$staged"
        say "$venv and $home have all of this already"
        trap show_log EXIT
        start_node
        must_answer
        trap - EXIT
        return
    fi
    if [ -n "$start" ] && [ -n "$old" ] && answers; then answered=yes; fi
    step "switching"
    stop_nodes
    trap go_back EXIT
    if [ -d "$venv" ] && [ ! -L "$venv" ]; then # of a version that had one environment
        if [ -f "$unit_file" ]; then run install -m 644 "$unit_file" "$venv/$UNIT"; fi
        run rm -rf "$prefix/env/before"
        run mv -T "$venv" "$prefix/env/before"
    fi
    point "$venv" "$to"
    link_command
    install_unit "$venv/$UNIT"
    if [ -n "$federation" ]; then place_federation; fi
    wake
    must_answer
    trap - EXIT
    if [ -n "$old" ] && [ "$old" != "$to" ]; then point "$prefix/previous" "$old"; fi
    prune
}

must_answer() {
    [ -z "$start" ] || [ -n "$dry_run" ] || node_answers || exit 1
}

wake() {
    if [ "${#stopped[@]}" -gt 0 ]; then run systemctl start "${stopped[@]}"; fi
    start_node
}

show_log() {
    warn "p2pfl@$node has stopped or does not answer; the end of its log:"
    journalctl -u "p2pfl@$node" -n 20 --no-pager >&2 || true
}

# However the switch failed. What there was before runs again.
go_back() {
    trap - EXIT
    set +e
    show_log
    systemctl_run stop 'p2pfl@*'
    if [ -z "$old" ]; then
        step "failed: the environment stays, and the service is stopped"
        return
    fi
    step "switching back to $old"
    run rm -rf "$staged"
    point "$venv" "$old"
    if [ -f "$venv/$UNIT" ]; then install_unit "$venv/$UNIT"; fi
    restore_previous
    run systemctl reset-failed 'p2pfl@*'
    wake
    if [ -n "$answered" ] && ! node_answers; then warn "p2pfl@$node does not answer now either"; fi
    if [ -z "$rollback" ]; then prune; fi
}

# Takes away what `replace_by_staged` has put there, and puts back what it has kept.
restore_previous() {
    local name entry
    for name in "${placed[@]}"; do
        case $name in "$node"/*) run_as_node rm -rf "$home/$name" ;; *) run rm -rf "$home/$name" ;; esac
    done
    [ "${#placed[@]}" -gt 0 ] || return 0
    for entry in "$previous/$node"/*; do run_as_node mv -T "$entry" "$home/$node/$(basename "$entry")"; done
    for entry in "$previous"/*; do
        if [ "$entry" != "$previous/$node" ]; then run mv -T "$entry" "$home/$(basename "$entry")"; fi
    done
    run rm -rf "$previous"
}

# Two environments stay.
prune() {
    local entry
    for entry in "$prefix"/env/*; do
        case env/$(basename "$entry") in "$(current)" | "$(readlink "$prefix/previous")") ;; *) run rm -rf "$entry" ;; esac
    done
}

# Whether the node says something now.
answers() {
    local said
    said=$(cd / && runuser -u "$USER_NAME" -- "$venv/bin/p2pfl" status "$home" --format csv 2>/dev/null) || true
    grep -Eq "^(http[^,]*,$node,[a-z]+,[0-9]|,$node,.*runs without a page)" <<<"$said"
}

# Waits for that. One that did not answer before, such as one that waits to be a member, need only be ready for systemd.
node_answers() {
    local end=$((SECONDS + ANSWERS_WITHIN_S))
    step "waiting for its answer"
    while [ "$SECONDS" -lt "$end" ]; do
        case $(systemctl is-active "p2pfl@$node.service") in
            active) if [ -z "$answered" ] || answers; then return 0; fi ;;
            inactive) return 0 ;; # its rounds are done
            *) return 1 ;;
        esac
        sleep 1
    done
    return 1
}

roll_back() {
    local wanted
    cd / # which the node's user may read
    wanted=$(readlink "$prefix/previous") || refuse "there is no environment before this one: nothing to go back to"
    software=$prefix/$wanted start=yes
    [ -x "$software/bin/p2pfl" ] || refuse "$software is gone"
    step "trying $wanted"
    # Not bin/p2pfl: in an environment that was moved here it names the Python of the present one.
    run_as_node "$software/bin/python" -m p2pfl check "$home" ||
        refuse "the version before cannot go on with what is here, as said above: nothing was changed"
    switch_to "$wanted"
}

uninstall() {
    local link
    for link in "$root"/etc/systemd/system/*.wants/p2pfl@*.service; do
        systemctl_run disable "$(basename "$link")"
    done
    systemctl_run stop 'p2pfl@*'
    run rm -f "$unit_file"
    systemctl_run daemon-reload
    if [ "$(readlink "$command_link")" = "$venv/bin/p2pfl" ]; then run rm -f "$command_link"; fi
    run rm -rf "$venv" "$prefix/env" "$prefix/previous"
    if [ -d "$prefix" ]; then run rmdir --ignore-fail-on-non-empty "$prefix"; fi
    say "kept: $home, with keys and state, and the user $USER_NAME, who owns them"
    say "to lose them for good: rm -r $home; userdel $USER_NAME"
}

conclude() {
    if [ -n "$dry_run" ]; then
        say "nothing was done: --dry-run"
    elif [ -n "$root" ]; then
        say "installed below $root"
    elif [ -n "$start" ]; then
        say "p2pfl@$node runs; its log: journalctl -u p2pfl@$node -f"
    elif [ -n "$node" ]; then
        say "installed; start it now and at every boot: systemctl enable --now p2pfl@$node"
    else
        say "installed; give the folder of a federation to install this machine's node as well"
    fi
}

parse_arguments "$@"
check_machine
if [ -n "$uninstall" ]; then
    uninstall
    exit 0
fi
if [ -n "$rollback" ]; then
    roll_back
    conclude
    exit 0
fi
check_python
if [ -n "$probe" ]; then
    choose_torch
    probe
    exit 0
fi
choose_source
if [ -n "$bundle" ]; then check_bundle; else choose_torch; fi
choose_node
make_user
if [ -n "$bundle" ]; then
    cd /
    make_environment
    if [ -n "$federation" ]; then stage_federation; fi
    switch_to "$fresh"
else
    stop_nodes
    install_software
    install_unit "$here/$UNIT"
    if [ -n "$federation" ]; then install_federation; fi
    start_nodes
    start_node
fi
conclude
