package main

import (
	"strings"
	"testing"
)

// A NameNode that a command waits for is named once, with how to wait for less.
func TestTellSlow(t *testing.T) {
	var out strings.Builder
	slow := tellSlow(&out)
	slow("nn1:8020")
	slow("nn2:8020")
	got := out.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "NameNode at nn1:8020") || !strings.Contains(got, "Ctrl-C") || !strings.Contains(got, "-D ipc.client.rpc-timeout.ms=") {
		t.Errorf("%q", got)
	}
}
