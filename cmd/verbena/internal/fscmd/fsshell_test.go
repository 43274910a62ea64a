package fscmd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/verbena-data/verbena"
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
	rt, err := verbena.New(verbena.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	cluster, err := hdfs.StartCluster(t.Context(), hdfs.ClusterConfig{Runtime: rt, Dir: t.TempDir(), Host: "127.0.0.1", DataNodes: 3, Replication: 3, Access: hdfs.AccessConfig{Superuser: "root"}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	connect := func(context.Context) (*hdfs.Client, error) {
		return hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{cluster.NameNode.Addr()}, User: "root"})
	}
	place := transcript.Place{Local: t.TempDir(), NameNode: cluster.NameNode.Addr()}
	if err := transcript.LocalFiles(place.Local); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		got, err := place.Perform(s.Args, func(args []string) (a transcript.Answer, err error) {
			var out, said bytes.Buffer
			cmd := Command(connect)
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			cmd.SetArgs(Arguments(append([]string{"fs"}, args...))[1:])
			cmd.SetOut(&out)
			cmd.SetErr(&said)
			err = cmd.ExecuteContext(t.Context())
			var told *Failure
			switch {
			case errors.As(err, &told):
				a.Code = told.Code
			case err != nil:
				a.Code = 1
				said.WriteString(err.Error() + "\n")
			}
			a.Out, a.Err = out.String(), said.String()
			return a, nil
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
