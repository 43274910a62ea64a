// Package testneed lets tests say what they need of the machine. What is missing
// skips the test with the reason and what to do about it; where everything is
// meant to be there (VERBENA_REQUIRE_TOOLS=1, as in continuous integration), it
// fails the test instead.
package testneed

import (
	"os"
	"os/exec"
	"testing"
)

// Variable is the environment variable that turns skips into failures.
const Variable = "VERBENA_REQUIRE_TOOLS"

// Tool returns the path of a program. install tells how to get it, such as
// "apt-get install tshark".
func Tool(t testing.TB, name, install string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, name+" is not installed", install)
	}
	return path
}

// Missing ends the test because of something else that is not there; remedy
// tells what to do.
func Missing(t testing.TB, what, remedy string) {
	t.Helper()
	if os.Getenv(Variable) == "1" {
		t.Fatalf("%s (%s); %s=1 requires it", what, remedy, Variable)
	}
	t.Skipf("%s (%s)", what, remedy)
}
