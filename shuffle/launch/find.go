package launch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Variables of the environment that stand for flags. They come before what a launcher sets.
const (
	RankVariable       = "VERBENA_RANK"
	SizeVariable       = "VERBENA_SIZE"
	RendezvousVariable = "VERBENA_RENDEZVOUS"
)

// maxSize bounds how many processes a job has.
const maxSize = 1 << 16

// A Worker is one process of a job.
type Worker struct {
	Rank, Size int
	// Rendezvous is where rank 0 listens until all have come: HOST:PORT, or unix:PATH
	// where all are on one host.
	Rendezvous string
	// Job tells jobs apart that meet at one address by mistake; it may be empty.
	Job string
	// Launcher is who told, for messages: "Slurm", "flags".
	Launcher string
}

// Flags are what the command line says. Rank -1, Size 0 and an empty Rendezvous are not
// given. Other numbers below 0 are an error.
type Flags struct {
	Rank, Size int
	Rendezvous string
}

// launcher is what a launcher's processes find in their environment.
type launcher struct {
	name string
	// rank and size are variables; the first that is set counts.
	rank, size []string
	// here is how many of the processes are on this host.
	here string
	// job are variables that together differ between jobs; for some launchers the parent
	// process does.
	job      []string
	byParent bool
	// needs is a variable without which the others mean something else.
	needs string
	// nodes lists the hosts, that of rank 0 first.
	nodes []string
}

// launchers stand in the order in which they are asked: an MPI's mpirun may run within
// Slurm, and Slurm's srun may set what MPICH reads.
var launchers = []launcher{
	{name: "Open MPI", rank: []string{"OMPI_COMM_WORLD_RANK"}, size: []string{"OMPI_COMM_WORLD_SIZE"}, here: "OMPI_COMM_WORLD_LOCAL_SIZE",
		job: []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, byParent: true},
	// A batch script has Slurm's variables, too, before srun has made a step of it.
	{name: "Slurm", rank: []string{"SLURM_PROCID"}, size: []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, needs: "SLURM_STEP_ID",
		job: []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}, nodes: []string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}},
	{name: "MPICH", rank: []string{"PMI_RANK"}, size: []string{"PMI_SIZE"}, here: "MPI_LOCALNRANKS", byParent: true},
	{name: "Kubernetes", rank: []string{"JOB_COMPLETION_INDEX"}},
}

// Find tells which process of a job this one is; launched is false if nobody has started it
// as one of several.
func Find(flags Flags, getenv func(string) string) (w Worker, launched bool, err error) {
	var rank, size string
	switch {
	case flags.Rank < -1:
		return Worker{}, false, fmt.Errorf("--rank %d: want 0 or more", flags.Rank)
	case flags.Size < 0:
		return Worker{}, false, fmt.Errorf("--size %d: want 1 or more", flags.Size)
	}
	switch {
	case flags.Rank >= 0:
		w.Launcher, rank = "flags", strconv.Itoa(flags.Rank)
	case getenv(RankVariable) != "":
		w.Launcher, rank = "the environment", getenv(RankVariable)
	}
	if flags.Size > 0 {
		size = strconv.Itoa(flags.Size)
	} else {
		size = getenv(SizeVariable)
	}
	w.Rendezvous = flags.Rendezvous
	if w.Rendezvous == "" {
		w.Rendezvous = getenv(RendezvousVariable)
	}
	var by *launcher
	if rank == "" {
		for i := range launchers {
			l := &launchers[i]
			if r := first(getenv, l.rank); r != "" && (l.needs == "" || getenv(l.needs) != "") {
				by, rank, w.Launcher = l, r, l.name
				if size == "" {
					size = first(getenv, l.size)
				}
				break
			}
		}
	}
	switch {
	case rank == "":
		if flags.Size > 0 || flags.Rendezvous != "" {
			return Worker{}, false, fmt.Errorf("a process of a job needs its number, too: --rank, %s, or a launcher that sets it", RankVariable)
		}
		return Worker{}, false, nil
	case size == "":
		return Worker{}, false, fmt.Errorf("%s says that this is process %s of a job, but not of how many: set --size or %s", w.Launcher, rank, SizeVariable)
	}
	if w.Size, err = number("the number of processes", size, 1, maxSize); err != nil {
		return Worker{}, false, fmt.Errorf("%s: %w", w.Launcher, err)
	}
	if w.Rank, err = number("the number of this process", rank, 0, w.Size-1); err != nil {
		return Worker{}, false, fmt.Errorf("%s: %w", w.Launcher, err)
	}
	if w.Size == 1 {
		return w, false, nil
	}
	if by != nil {
		w.Job = by.jobOf(getenv)
	}
	if w.Rendezvous == "" {
		if w.Rendezvous, err = by.meeting(w, getenv); err != nil {
			return Worker{}, false, err
		}
	}
	return w, true, checkAddress(w.Rendezvous)
}

func first(getenv func(string) string, names []string) string {
	for _, name := range names {
		if v := getenv(name); v != "" {
			return v
		}
	}
	return ""
}

func number(what, text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s is %q: want %d to %d", what, text, low, high)
	}
	return n, nil
}

// jobOf is a name that the processes of one job share.
func (l *launcher) jobOf(getenv func(string) string) string {
	parts := []string{l.name}
	for _, name := range l.job {
		if v := getenv(name); v != "" {
			parts = append(parts, v)
		}
	}
	if len(parts) == 1 && l.byParent {
		parts = append(parts, strconv.Itoa(os.Getppid()))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return fmt.Sprintf("%x", sum[:8])
}

// meeting is where processes meet if nobody said: a socket of this host if all are here,
// else a port of the first host.
func (l *launcher) meeting(w Worker, getenv func(string) string) (string, error) {
	if l != nil {
		if l.here != "" && getenv(l.here) == strconv.Itoa(w.Size) {
			return unixPrefix + filepath.Join(ownDirectory(), w.Job), nil
		}
		if list := first(getenv, l.nodes); list != "" {
			host, err := firstHost(list)
			if err != nil {
				return "", err
			}
			return net.JoinHostPort(host, strconv.Itoa(portOf(w.Job))), nil
		}
	}
	return "", fmt.Errorf("%s does not tell on which host process 0 runs: set --rendezvous or %s to HOST:PORT of it, the same for all %d processes", w.Launcher, RendezvousVariable, w.Size)
}

// ownDirectory has the sockets at which this user's processes meet. It lies where everybody may make one of that name.
func ownDirectory() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("verbena-%d", os.Getuid()))
}

// portOf is a port below those that systems give to outgoing connections.
func portOf(job string) int {
	sum := sha256.Sum256([]byte(job))
	return 20000 + (int(sum[0])<<8+int(sum[1]))%10000
}

// firstHost is the first name in Slurm's list of hosts, such as "rack[3-5,9]-node[01-16],login".
func firstHost(list string) (string, error) {
	var host strings.Builder
	rest := list
	for rest != "" && rest[0] != ',' {
		if rest[0] != '[' {
			host.WriteByte(rest[0])
			rest = rest[1:]
			continue
		}
		set, after, ok := strings.Cut(rest[1:], "]")
		if !ok {
			return "", fmt.Errorf("the list of hosts %q lacks a bracket", list)
		}
		host.WriteString(set[:strings.IndexAny(set+",", "-,")])
		rest = after
	}
	if host.Len() == 0 {
		return "", fmt.Errorf("the list of hosts %q begins with no host", list)
	}
	return host.String(), nil
}

func checkAddress(address string) error {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		if path == "" {
			return errors.New("the rendezvous unix: lacks a path")
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("the rendezvous %q: want HOST:PORT or unix:PATH: %w", address, err)
	}
	return nil
}
