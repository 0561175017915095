#!/usr/bin/env python3
"""Runs a command beside a real Slurm of its own: munged, slurmctld and one slurmd for each virtual node.

    tests/slurm/cluster.py [--nodes 2] [--cpus 4] [--grace 0] [--kill-wait 30] [--no-requeue-exit] COMMAND...

    tests/slurm/cluster.py bash          # look around: sinfo, srun -N2 -n4 --mpi=pmix hostname, ...

Everything lives in namespaces of its own (processes, network, mounts, host name): the daemons listen on a loopback
that nobody else sees, each node is a host with its own name and /dev/shm, and when the command ends, or this program
is killed, the kernel ends whatever is left. Files are kept in a short folder in /tmp (a Unix socket's path holds 107
characters) and removed at the end.

Exit status: the command's; 77 ("skipped", with the reason) where Slurm, root or namespaces are missing.
"""
import argparse
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

SKIP = 77
FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")

CONF = """\
ClusterName=lockstep
SlurmctldHost=controller(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job may start again when its old credential has expired: 120 s by default.
AuthInfo=socket={dir}/munge.sock,cred_expire={cred_expire}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
# The pmix plugin makes a folder per job step in TmpFS: nodes that shared one would collide.
TmpFS={dir}/tmp/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld
SlurmdLogFile={dir}/log/slurmd-%n
MailProg=/bin/true
PlugStackConfig={dir}/etc/plugstack.conf
# With cgroups, as on production clusters, Slurm's signals reach only the direct children of slurmstepd.
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
# A node has the CPUs that it says it has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
JobRequeue=1
{requeue_exit}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait}
MinJobAge=600
SlurmdTimeout=60
MessageTimeout=20
BatchStartTimeout=20
UnkillableStepTimeout=60
NodeName=DEFAULT CPUs={cpus} CoresPerSocket={cpus} RealMemory=1000
{nodes}
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=10 OverSubscribe=NO
PartitionName=low Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=high PriorityTier=10 PreemptMode=OFF
"""


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIP)


def poll(what, check, seconds=30.0):
    """Waits until check() is true."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.02)


def answers(*command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def enter_namespaces():
    """Starts this program again inside namespaces of its own; returns there."""
    if os.environ.get("LOCKSTEP_TEST_CLUSTER"):
        return
    if os.geteuid() != 0:
        skip("a cluster of virtual nodes needs root")
    for program in ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare", "mount"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            skip(f"{program} is not installed (apt-get install slurmctld slurmd slurm-client munge)")
    unshare = ["unshare", "--uts", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not answers(*unshare, "true"):
        skip("this machine does not allow namespaces (unshare failed)")
    os.environ["LOCKSTEP_TEST_CLUSTER"] = "1"
    # The shell is process 1 in there and reaps what the daemons leave behind.
    os.execvp(unshare[0], unshare + ["bash", "-c", '"$@"; exit $?', "init", sys.executable, *sys.argv])


def raise_network():
    """Brings lo up, and gives this host an address that is not loopback: glibc resolves no name on one without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
        try:
            fcntl.ioctl(sock, 0x89A0, struct.pack("16s", b"unused"))  # SIOCBRADDBR: a bridge that leads nowhere
        except OSError as error:
            skip(f"this machine has no network bridges ({error.strerror})")
        address = struct.pack("16sHH4s8x", b"unused", socket.AF_INET, 0, socket.inet_aton("192.0.2.1"))
        fcntl.ioctl(sock, 0x8916, address)  # SIOCSIFADDR


class Cluster:
    def __init__(self, options, folder):
        self.dir = folder
        self.daemons = {}
        folder.chmod(0o755)  # munged insists
        self.nodes = [f"n{i + 1}" for i in range(options.nodes)]
        for name in ("etc", "log", "state", "munge"):
            (folder / name).mkdir()
        for node in self.nodes:
            (folder / "spool" / node).mkdir(parents=True)
            (folder / "tmp" / node).mkdir(parents=True)
        cgroup = (FREEZER / "release_agent").exists() and os.access(FREEZER, os.W_OK)
        if cgroup:
            (folder / "etc/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "etc/slurm.conf").write_text(CONF.format(
            dir=folder, cred_expire=options.cred_expire, grace=options.grace, kill_wait=options.kill_wait,
            cpus=options.cpus, proctrack="cgroup" if cgroup else "linuxproc",
            requeue_exit="" if options.no_requeue_exit else "RequeueExit=85",
            nodes="\n".join(f"NodeName={n} NodeAddr=127.0.0.1 Port={6820 + i}" for i, n in enumerate(self.nodes))))
        (folder / "etc/plugstack.conf").write_text("")
        # The plugin's default fence lets ranks out of MPI_Init too early; Open MPI then crashes now and then.
        (folder / "etc/mpi.conf").write_text("PMIxCollFence=ring\n")
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost controller {' '.join(self.nodes)}\n")
        (folder / "munge/key").touch(mode=0o600)
        (folder / "munge/key").write_bytes(os.urandom(128))
        os.environ["SLURM_CONF"] = str(folder / "etc/slurm.conf")
        os.environ["PATH"] += ":/usr/sbin:/sbin"

    def start(self):
        subprocess.run(["mount", "--bind", self.dir / "etc/hosts", "/etc/hosts"], check=True)
        socket.sethostname("controller")
        raise_network()
        self.daemon("munged", "munged", "--foreground", f"--key-file={self.dir}/munge/key",
                    f"--socket={self.dir}/munge.sock", f"--pid-file={self.dir}/munge/pid",
                    f"--seed-file={self.dir}/munge/seed", f"--log-file={self.dir}/munge/log")
        self.wait_until("munged", lambda: answers("munge", "-n", "-S", self.dir / "munge.sock"))
        self.daemon("slurmctld", "slurmctld", "-D", "-c")
        for node in self.nodes:
            self.daemon(node, "unshare", "--uts", "--mount", "sh", "-c",
                        f"hostname {node} && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N {node}")
        self.wait_until("the nodes", self.all_idle)

    def daemon(self, name, *command):
        with open(self.dir / "log" / f"{name}.out", "wb") as out:
            self.daemons[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  start_new_session=True)

    def wait_until(self, what, check):
        def check_daemons_too():
            for name, process in self.daemons.items():
                if process.poll() is not None:
                    raise TimeoutError(f"{name} ended with {process.returncode}")
            return check()
        poll(what, check_daemons_too)

    def all_idle(self):
        sinfo = subprocess.run(["sinfo", "-h", "-p", "low", "-N", "-o", "%T"], capture_output=True, text=True,
                               check=False)
        return sinfo.stdout.split() == ["idle"] * len(self.nodes)

    def print_logs(self):
        for log in sorted((self.dir / "log").iterdir()):
            lines = log.read_text(errors="replace").splitlines()[-15:]
            if lines:
                print(f"--- {log.name}", *lines, sep="\n", file=sys.stderr)

    def stop(self):
        """Ends every process of these namespaces but this one and its parents, then their cgroups."""
        mine = {1, os.getpid(), os.getppid()}
        def others():
            return [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) not in mine
                    and pathlib.Path("/proc", p, "stat").read_text().rpartition(")")[2].split()[0] != "Z"]
        def killed():
            try:
                left = others()
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                return not left
            except (FileNotFoundError, ProcessLookupError):
                return False
        poll("the daemons' end", killed)
        for node in self.nodes:
            for folder, _, _ in os.walk(FREEZER / f"slurm_{node}", topdown=False):
                os.rmdir(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=4, help="of each node; may be more than the machine has")
    parser.add_argument("--grace", type=int, default=0, help="GraceTime of the partition that is preempted")
    parser.add_argument("--kill-wait", type=int, default=30, help="seconds from TERM to KILL")
    parser.add_argument("--cred-expire", type=int, default=5, help="a requeued job waits a little longer than this")
    parser.add_argument("--no-requeue-exit", action="store_true", help="a site without RequeueExit=85")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("no command")
    enter_namespaces()
    # The cgroups of the nodes are the machine's: one cluster at a time.
    with open("/tmp/lockstep-test-cluster.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for old in pathlib.Path("/tmp").glob("lockstep-cl-*"):  # of one that was killed
            shutil.rmtree(old)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-cl-", dir="/tmp"))
        cluster = Cluster(options, folder)
        status = 1
        try:
            cluster.start()
            status = subprocess.run(options.command, check=False).returncode
        except SystemExit as leave:
            status = leave.code
        except TimeoutError as late:
            print(f"the cluster did not come up: {late}", file=sys.stderr)
        finally:
            if status not in (0, SKIP):
                cluster.print_logs()
            cluster.stop()
            shutil.rmtree(folder)
        return status


if __name__ == "__main__":
    sys.exit(main())
