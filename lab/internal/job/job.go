// Package job is what the lab's host side tells the agent inside the virtual
// machine: which command to run there, and in which network.
package job

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Paths inside the virtual machine.
const (
	File  = "/lab/job.json"
	Agent = "/lab/agent"
	// Files is where the files of the user's command are put.
	Files = "/lab/files"
	// Share is where a shared host directory is mounted.
	Share = "/host"
)

// Names of the virtio-serial ports over which output leaves.
const (
	PortStdout = "lab.stdout"
	PortStderr = "lab.stderr"
	PortStatus = "lab.status"
)

// ShareTag names the shared directory to the guest's 9p client.
const ShareTag = "host"

// InsideVariable is set to 1 for everything that runs in the virtual machine.
const InsideVariable = "VERBENA_LAB"

// DriverVariable tells the cases which driver's links are up, if it is one's.
const DriverVariable = "VERBENA_LAB_DRIVER"

// A Job is one command to run in the virtual machine.
type Job struct {
	// World names the RDMA drivers to bring up before the command, a comma
	// between them: "rxe", "siw", "rxe,siw". Empty leaves the network alone.
	World string
	// Loss is how many percent of the packets between the two hosts get lost.
	Loss int
	Argv []string
	Env  []string
	Dir  string
	// Share says that a host directory waits to be mounted.
	Share bool
	// Console gives the command the console instead of the ports, for a shell.
	Console bool
	// ShellOnFailure opens a shell on the console when the command has failed.
	ShellOnFailure bool
}

// Encode is the content of [File].
func (j Job) Encode() ([]byte, error) { return json.MarshalIndent(j, "", "  ") }

// Read reads and checks a job.
func Read(path string) (Job, error) {
	var j Job
	raw, err := os.ReadFile(path)
	if err != nil {
		return j, err
	}
	if err := json.Unmarshal(raw, &j); err != nil {
		return j, fmt.Errorf("%s: %w", path, err)
	}
	if len(j.Argv) == 0 {
		return j, fmt.Errorf("%s: no command", path)
	}
	return j, nil
}

// Port finds the device of a virtio-serial port by its name.
func Port(name string) (string, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, n := range names {
		content, err := os.ReadFile(n)
		if err == nil && strings.TrimSpace(string(content)) == name {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(n))), nil
		}
	}
	return "", fmt.Errorf("no virtio-serial port is called %s", name)
}
