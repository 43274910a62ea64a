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

// bounded is a context that ends with the test, and after a time that nothing
// here takes on a slow machine.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
