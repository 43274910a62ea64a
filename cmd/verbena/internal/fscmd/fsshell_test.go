package fscmd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/transcript"
)

// Commands answer what Hadoop's shell has answered: output, exit status, error texts. What
// differs on purpose fails or succeeds alike.
func TestAnswersAreHadoops(t *testing.T) {
	text, err := os.ReadFile("testdata/fsshell.txt")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := transcript.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	shell := startShell(t)
	place := transcript.Place{Local: t.TempDir(), NameNode: shell.nameNode}
	if err := transcript.LocalFiles(place.Local); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		got, err := place.Perform(s.Args, func(c transcript.Call) (transcript.Answer, error) {
			return shell.as(c.User, c.Properties...).perform("", c.Args...), nil
		})
		if err != nil {
			t.Errorf("%s: %v", s.Command(), err)
			continue
		}
		if s.Differs != "" {
			if got == s.Answer || (got.Code == 0) != (s.Answer.Code == 0) {
				t.Errorf("%s\n answers %+v, Hadoop %+v,\n which differs on purpose: %s", s.Command(), got, s.Answer, s.Differs)
			}
			continue
		}
		if got != s.Answer {
			t.Errorf("%s\n answers %+v,\n Hadoop  %+v", s.Command(), got, s.Answer)
		}
	}
}

// A shell is the commands on a file system of their own, whose superuser is root.
type shell struct {
	t          *testing.T
	nameNode   string
	user       string
	properties []string // of Hadoop, NAME=VALUE
}

// as is the shell of somebody, who says -D.
func (s *shell) as(user string, properties ...string) *shell {
	return &shell{s.t, s.nameNode, user, properties}
}

func startShell(t *testing.T) *shell {
	t.Helper()
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	cluster, err := hdfs.StartCluster(t.Context(), hdfs.ClusterConfig{Runtime: rt, Dir: t.TempDir(), Host: "127.0.0.1", DataNodes: 3, Replication: 3, Access: hdfs.AccessConfig{Superuser: "root"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cluster.Close() })
	return &shell{t: t, nameNode: cluster.NameNode.Addr(), user: "root"}
}

func (s *shell) connect(context.Context) (*hdfs.Client, error) {
	cfg := hdfs.ClientConfig{NameNodes: []string{s.nameNode}, User: s.user}
	properties := &conf.Properties{}
	for _, each := range s.properties {
		name, value, _ := strings.Cut(each, "=")
		properties.Set(name, value, "-D")
	}
	if err := cfg.Take(properties); err != nil {
		return nil, err
	}
	return hdfs.NewClient(cfg)
}

// perform performs a command that reads in.
func (s *shell) perform(in string, args ...string) (a transcript.Answer) {
	var out, said bytes.Buffer
	cmd := Command(s.connect)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(Arguments(append([]string{"fs"}, args...))[1:])
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&out)
	cmd.SetErr(&said)
	err := cmd.ExecuteContext(s.t.Context())
	var told *Failure
	switch {
	case errors.As(err, &told):
		a.Code = told.Code
	case err != nil:
		a.Code = 1
		said.WriteString(err.Error() + "\n")
	}
	a.Out, a.Err = out.String(), said.String()
	return a
}

// must is the output of a command that must not fail.
func (s *shell) must(args ...string) string {
	s.t.Helper()
	a := s.perform("", args...)
	if a.Code != 0 || a.Err != "" {
		s.t.Fatalf("%v: %d, %s", args, a.Code, a.Err)
	}
	return a.Out
}
