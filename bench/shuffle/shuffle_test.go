package main

import (
	"context"
	"os"
	"testing"
)

// asCommand makes the test binary be the command, for the processes that it starts.
const asCommand = "VERBENA_TEST_AS_SHUFFLE"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		if err := root().ExecuteContext(context.Background()); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Each system brings every record to where it belongs: drive counts them.
func TestSystems(t *testing.T) {
	t.Setenv(asCommand, "1")
	for name := range systems {
		t.Run(name, func(t *testing.T) {
			for _, l := range []load{{Record: 100, Records: 5000}, {Record: 65536, Records: 20, Zipf: true}} {
				l.System, l.Size, l.Threads = name, 3, 2
				if m, err := drive(t.Context(), l); err != nil || m.CPU <= 0 {
					t.Errorf("%+v: %v", l, err)
				}
			}
		})
	}
}
