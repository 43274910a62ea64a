package launch

import (
	"strings"
	"testing"
)

// environment is what a launcher sets.
type environment map[string]string

func (e environment) get(name string) string { return e[name] }

func TestFind(t *testing.T) {
	none := Flags{Rank: -1}
	for _, test := range []struct {
		name  string
		flags Flags
		env   environment
		want  Worker // Job is looked at if it is set
		alone bool
	}{
		{"nobody", none, environment{}, Worker{}, true},
		{"flags", Flags{1, 2, "node1:4700"}, environment{"VERBENA_RANK": "0"}, Worker{Rank: 1, Size: 2, Rendezvous: "node1:4700", Launcher: "flags"}, false},
		{"environment", none, environment{"VERBENA_RANK": "1", "VERBENA_SIZE": "3", "VERBENA_RENDEZVOUS": "unix:/run/x"}, Worker{Rank: 1, Size: 3, Rendezvous: "unix:/run/x", Launcher: "the environment"}, false},
		{"size from a flag", Flags{Rank: -1, Size: 4}, environment{"JOB_COMPLETION_INDEX": "3", "VERBENA_RENDEZVOUS": "job-0.job:4700"}, Worker{Rank: 3, Size: 4, Rendezvous: "job-0.job:4700", Launcher: "Kubernetes"}, false},
		{"Kubernetes", none, environment{"JOB_COMPLETION_INDEX": "0", "VERBENA_SIZE": "4", "VERBENA_RENDEZVOUS": "job-0.job:4700"}, Worker{Rank: 0, Size: 4, Rendezvous: "job-0.job:4700", Launcher: "Kubernetes"}, false},
		{"Slurm", none, environment{"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "16", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "rack[03-05]-n[1,2],z"},
			Worker{Rank: 5, Size: 8, Rendezvous: "rack03-n1:25585", Launcher: "Slurm"}, false},
		{"a batch script of Slurm", none, environment{"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "77"}, Worker{}, true},
		{"one process", none, environment{"PMI_RANK": "0", "PMI_SIZE": "1"}, Worker{Rank: 0, Size: 1, Launcher: "MPICH"}, true},
		{"Open MPI on many hosts", none, environment{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "VERBENA_RENDEZVOUS": "n:1"},
			Worker{Rank: 2, Size: 4, Rendezvous: "n:1", Launcher: "Open MPI"}, false},
	} {
		w, launched, err := Find(test.flags, test.env.get)
		w.Job = ""
		if err != nil || launched == test.alone || w != test.want {
			t.Errorf("%s: %+v, launched %v, %v; want %+v", test.name, w, launched, err, test.want)
		}
	}
}

func TestFindRefuses(t *testing.T) {
	for _, test := range []struct {
		flags Flags
		env   environment
		want  string
	}{
		{Flags{Rank: 2, Size: 2, Rendezvous: "n:1"}, nil, "0 to 1"},
		{Flags{Rank: 0}, nil, "how many"},
		{Flags{Rank: -1, Size: 3}, nil, "--rank"},
		{Flags{Rank: -7, Size: 3, Rendezvous: "n:1"}, environment{"VERBENA_RANK": "1"}, "--rank -7"},
		{Flags{Rank: 0, Size: -5, Rendezvous: "n:1"}, environment{"VERBENA_SIZE": "2"}, "--size -5"},
		{Flags{Rank: 0, Size: 2}, nil, "--rendezvous"},
		{Flags{Rank: 0, Size: 2, Rendezvous: "n"}, nil, "HOST:PORT"},
		{Flags{Rank: 0, Size: 2, Rendezvous: "unix:"}, nil, "path"},
		{Flags{Rank: -1}, environment{"JOB_COMPLETION_INDEX": "1"}, "how many"},
		{Flags{Rank: -1}, environment{"JOB_COMPLETION_INDEX": "x", "VERBENA_SIZE": "2"}, `"x"`},
		{Flags{Rank: -1}, environment{"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, "MPICH does not tell on which host"},
		{Flags{Rank: -1}, environment{"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n[1"}, "bracket"},
	} {
		if w, _, err := Find(test.flags, test.env.get); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v %v: %+v, %v; want %q", test.flags, test.env, w, err, test.want)
		}
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"n1": "n1", "n1,n2": "n1", "n[1-3]": "n1", "n[07,09]": "n07", "n[1-2]-ib,x": "n1-ib", "a[1-2]b[3,4]c": "a1b3c", "n[12]": "n12",
	} {
		if got, err := firstHost(list); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"", ",n", "n[1", "["} {
		if got, err := firstHost(list); err == nil {
			t.Errorf("%q is %q", list, got)
		}
	}
}

func FuzzFirstHost(f *testing.F) {
	f.Add("rack[3-5,9]-node[01-16],login")
	f.Fuzz(func(t *testing.T, list string) {
		if host, err := firstHost(list); err == nil && (host == "" || strings.ContainsAny(host, "[,")) && !strings.ContainsAny(list, "[]") {
			t.Errorf("%q: %q", list, host)
		}
	})
}
