package cases

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/verbena-data/verbena/lab/internal/job"
)

func TestMain(m *testing.M) {
	playRole()
	flag.Parse()
	if os.Getenv(job.InsideVariable) != "1" && flag.Lookup("test.list").Value.String() == "" {
		fmt.Println("these run inside the lab's virtual machine: go run ./lab")
		return
	}
	os.Exit(m.Run())
}

// driver is the RDMA driver whose links the machine has: a machine has one for
// good, because links cannot go while a process has their devices open, and
// rdma_cm takes rxe where there are two.
func driver(t *testing.T) string {
	t.Helper()
	d := os.Getenv(job.DriverVariable)
	if d != "rxe" && d != "siw" {
		t.Fatalf("%s is %q: this needs a machine with the links of one driver", job.DriverVariable, d)
	}
	return d
}

// bounded is a context that ends with the test, and after a time that nothing
// here takes on a slow machine.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
