package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/verbena-data/verbena/lab/internal/foreign"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs"
	"github.com/verbena-data/verbena/rdma/iwarp"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// A role is what a child process of the tests plays: one side of a connection,
// on a device of its own, where needed in a network namespace of its own.
type role struct {
	Kind         string // a key of roles
	Provider     string
	Device       string // of ibverbs
	SegmentSized bool   // of iwarp
	SpeakFirst   bool   // of iwarp
	NoReady      bool   // of iwarp: no peer-to-peer mode
	Address      string // to listen at or to connect to; of a control connection
	Rounds, Size int
	Write        bool
}

const roleVariable = "VERBENA_LAB_ROLE"

// listening is what a role says once it listens.
const listening = "listening at "

var roles = map[string]func(ctx context.Context, device rdma.Device, r role) error{
	"rping server": func(ctx context.Context, device rdma.Device, r role) error {
		return listen(ctx, device, r, func(l rdma.Listener) error { return foreign.ServeRping(ctx, device, l, r.Rounds) })
	},
	"rping client": func(ctx context.Context, device rdma.Device, r role) error {
		return foreign.PingRping(ctx, device, r.Address, r.Rounds, r.Size)
	},
	"perftest server": func(ctx context.Context, device rdma.Device, r role) error {
		return listen(ctx, device, r, func(l rdma.Listener) error {
			return foreign.ServePerftest(ctx, device, l, foreign.Latency{Write: r.Write, Size: r.Size, Iterations: r.Rounds})
		})
	},
	// The device is offered at a Unix socket, which other namespaces reach.
	"device server": func(ctx context.Context, device rdma.Device, r role) error {
		l, err := net.Listen("unix", r.Address)
		if err != nil {
			return err
		}
		defer l.Close()
		fmt.Println(listening + r.Address)
		control, err := l.Accept()
		if err != nil {
			return err
		}
		return rdmatest.ServeDevice(control, device)
	},
}

func listen(ctx context.Context, device rdma.Device, r role, serve func(rdma.Listener) error) error {
	l, err := device.Listen(ctx, r.Address)
	if err != nil {
		return err
	}
	fmt.Println(listening + l.Address())
	return errors.Join(serve(l), l.Close())
}

// playRole plays the role that this process was started for, if it was.
func playRole() {
	text, ok := os.LookupEnv(roleVariable)
	if !ok {
		return
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if r.Kind == "device server" { // lives as long as its control connection
			ctx = context.Background()
		}
		var device rdma.Device
		if device, err = openDevice(ctx, r); err == nil {
			err = roles[r.Kind](ctx, device, r)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// play starts a role in a network namespace ("" for this one).
func play(t *testing.T, namespace string, r role) *program {
	t.Helper()
	if roles[r.Kind] == nil {
		t.Fatalf("no role %q", r.Kind)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, namespace, "env", roleVariable+"="+string(text), self)
}

// openDevice opens the device of a role.
func openDevice(ctx context.Context, r role) (rdma.Device, error) {
	provider := newProvider(r)
	if provider == nil {
		return nil, fmt.Errorf("no provider %q", r.Provider)
	}
	devices, err := provider.Devices(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if r.Device == "" || d.Attributes().Name == r.Device {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%s has no device %s", r.Provider, r.Device)
}

func newProvider(r role) rdma.Provider {
	switch r.Provider {
	case "ibverbs":
		return ibverbs.New(ibverbs.Config{Device: r.Device})
	case "iwarp":
		return iwarp.New(iwarp.Config{AllowRemote: true, SegmentSized: r.SegmentSized, SpeakFirst: r.SpeakFirst, NotPeerToPeer: r.NoReady})
	}
	return nil
}
