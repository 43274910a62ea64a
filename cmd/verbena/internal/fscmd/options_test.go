package fscmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs"
)

// What cp -p keeps is what its letters say, and put -p and get -p keep times, owner and mode.
func TestCopiesKeepWhatIsAskedFor(t *testing.T) {
	s := startShell(t)
	local := t.TempDir()
	at := filepath.Join(local, "file")
	then := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := os.WriteFile(at, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(at, then.Add(time.Hour), then); err != nil {
		t.Fatal(err)
	}
	s.must("mkdir", "-p", "/from/dir")
	s.must("put", "-p", at, "/from/dir/file")
	const format = "%a %X %Y"
	kept := fmt.Sprintf("600 %d %d\n", then.Add(time.Hour).UnixMilli(), then.UnixMilli())
	if got := s.must("stat", format, "/from/dir/file"); got != kept {
		t.Errorf("put -p: %q, want %q", got, kept)
	}
	s.must("chown", "ada:staff", "/from/dir/file")
	s.must("setfacl", "-m", "user:bob:rw-", "/from/dir/file")
	s.must("setfattr", "-n", "user.color", "-v", "blue", "/from/dir/file")
	s.must("touch", "-t", "20200102:030405", "/from/dir")
	for letters, want := range map[string]struct {
		times, owner, acl, attributes bool
		mode                          string
	}{
		"": {mode: "644"}, "-p": {times: true, owner: true, mode: "660"}, "-pt": {times: true, mode: "644"}, "-po": {owner: true, mode: "644"},
		"-pp": {mode: "660"}, "-pa": {acl: true, mode: "660"}, "-px": {attributes: true, mode: "644"}, "-ptopax": {true, true, true, true, "660"},
	} {
		args := []string{"cp"}
		if letters != "" {
			args = append(args, letters)
		}
		to := "/to" + letters
		s.must(append(args, "/from/dir", to)...)
		file := to + "/file"
		if got := strings.HasSuffix(s.must("stat", format, file), kept[3:]); got != want.times {
			t.Errorf("cp %s keeps times: %v", letters, got)
		}
		if a, b := s.must("stat", "%Y", "/from/dir"), s.must("stat", "%Y", to); (a == b) != want.times {
			t.Errorf("cp %s keeps a directory's time: %v", letters, a == b)
		}
		if got := s.must("stat", "%u:%g", file) == "ada:staff\n"; got != want.owner {
			t.Errorf("cp %s keeps the owner: %v", letters, got)
		}
		if got := strings.Contains(s.must("getfacl", file), "user:bob:rw-"); got != want.acl {
			t.Errorf("cp %s keeps the ACL: %v", letters, got)
		}
		if got := strings.Contains(s.must("getfattr", "-d", file), `user.color="blue"`); got != want.attributes {
			t.Errorf("cp %s keeps attributes: %v", letters, got)
		}
		if got := s.must("stat", "%a", file); got != want.mode+"\n" {
			t.Errorf("cp %s: mode %s want %s", letters, got, want.mode)
		}
	}
	if a := s.perform("", "cp", "-pz", "/from/dir", "/to-z"); a.Code != 255 {
		t.Errorf("cp -pz: %+v", a)
	}
	// Its owner is nobody here, and nothing is lost for that.
	fetched := filepath.Join(local, "fetched")
	if a := s.perform("", "get", "-p", "/from/dir/file", fetched); a.Code != 1 || !strings.Contains(a.Err, "ada") {
		t.Errorf("get -p of a file of nobody: %+v", a)
	}
	if content, err := os.ReadFile(fetched); err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
}

// tail that would look without a pause is refused.
func TestTailPausesBetweenLooks(t *testing.T) {
	s := startShell(t)
	s.must("touchz", "/file")
	for _, args := range [][]string{{"--sleep-interval", "0"}, {"--sleep-interval", "-1s"}, {"-s", "0"}, {"-s", "-5"}} {
		a := s.perform("", append(append([]string{"tail"}, args...), "/file")...)
		if a.Code != 255 || !strings.Contains(a.Err, "want more than 0") {
			t.Errorf("tail %v: %+v", args, a)
		}
	}
	s.must("tail", "-s", "1", "/file")
}

// tail -f goes on with the file that comes in the place of the one it shows, as Hadoop's command
// does: behind as many bytes, or behind its end if it is shorter.
func TestTailFollowsTheName(t *testing.T) {
	s := startShell(t)
	c, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	put := func(content string) { // at one blow: at a moment without a file tail ends
		t.Helper()
		if a := s.perform(content, "put", "-", "/other"); a.Code != 0 {
			t.Fatalf("%+v", a)
		}
		if err := c.Rename(t.Context(), "/other", "/file", true); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("a", 1000)
	put(long)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown, out := io.Pipe()
	defer shown.Close()
	ended := make(chan error, 1)
	cmd := Command(s.connect)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"tail", "-f", "--sleep-interval", "1ms", "/file"})
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	go func() {
		err := cmd.ExecuteContext(ctx)
		out.CloseWithError(errors.Join(err, io.EOF))
		ended <- err
	}()
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(shown, got); err != nil || string(got) != want {
			t.Fatalf("it shows %q, want %q: %v", got, want, err)
		}
	}
	expect(long)
	put(strings.Repeat("b", 1000) + "more")
	expect("more")
	put("c")
	got := make(chan string, 1)
	go func() {
		one := make([]byte, 1)
		_, _ = shown.Read(one) // a zero byte is not what is wanted
		got <- string(one)
		_, _ = io.Copy(io.Discard, shown)
	}()
	told := ""
	for i := 0; i < 100 && told == ""; i++ { // of what is there when it looks it shows nothing
		if a := s.perform("d", "append", "-", "/file"); a.Code != 0 {
			t.Fatalf("%+v", a)
		}
		select {
		case told = <-got:
		default:
		}
	}
	if told != "d" {
		t.Errorf("it shows %q of what is appended to a shorter file", told)
	}
	cancel()
	<-ended // with whatever the end of its context has made of a look
}

// touch sets the times that it is told, and makes no file if it is told so.
func TestTouchSetsTimes(t *testing.T) {
	s := startShell(t)
	stamp := func(text string) string {
		at, err := time.ParseInLocation(stampLayout, text, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(at.UnixMilli())
	}
	times := func() string { return s.must("stat", "%X %Y", "/f") }
	const first, second, third = "20200102:030405", "20210102:030405", "20220102:030405"
	s.must("touch", "-t", first, "/f")
	if got, want := times(), stamp(first)+" "+stamp(first)+"\n"; got != want {
		t.Errorf("made at %s, want %s", got, want)
	}
	s.must("touch", "-a", "-t", second, "/f")
	s.must("touch", "-m", "-t", third, "/f")
	if got, want := times(), stamp(second)+" "+stamp(third)+"\n"; got != want {
		t.Errorf("touched at %s, want %s", got, want)
	}
	s.must("touch", "-c", "-t", first, "/absent", "/f")
	if got, want := times(), stamp(first)+" "+stamp(first)+"\n"; got != want {
		t.Errorf("touched at %s, want %s", got, want)
	}
	if a := s.perform("", "test", "-e", "/absent"); a.Code != 1 {
		t.Errorf("touch -c has made a file: %+v", a)
	}
}

// With threads as without, all files of a tree arrive, those that can't be copied are told,
// and the command fails for them.
func TestThreadsCopyTrees(t *testing.T) {
	s := startShell(t)
	local := filepath.Join(t.TempDir(), "tree")
	for i := range 20 {
		dir := filepath.Join(local, fmt.Sprint("d", i%3))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), []byte(strings.Repeat("x", 1000*i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.must("put", "-t", "4", "-q", "2", local, "/tree")
	s.must("cp", "-t", "4", "-p", "/tree", "/copy")
	back := filepath.Join(t.TempDir(), "back")
	s.must("get", "-t", "4", "-crc", "/copy", back)
	for i := range 20 {
		name := filepath.Join(fmt.Sprint("d", i%3), fmt.Sprint("f", i))
		got, err := os.ReadFile(filepath.Join(back, name))
		if err != nil || string(got) != strings.Repeat("x", 1000*i) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	// Again into what is there: all but one exist.
	s.must("rm", "/copy/d0/f0")
	a := s.perform("", "put", "-t", "4", filepath.Join(local, "d0"), filepath.Join(local, "d1"), "/copy")
	if n := strings.Count(a.Err, "File exists"); a.Code != 1 || n != 13 {
		t.Errorf("%d files are there: %+v", n, a)
	}
	s.must("test", "-e", "/copy/d0/f0")
	// The checksums are Hadoop's, of the last chunk as well.
	if err := os.WriteFile(filepath.Join(local, "six"), []byte("ffive\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.must("put", filepath.Join(local, "six"), "/six")
	s.must("get", "-crc", "/six", back)
	if got, err := os.ReadFile(filepath.Join(back, ".six.crc")); err != nil || string(got) != "crc\x00\x00\x00\x02\x00\x97\x10\x15\x9e" {
		t.Errorf("%q, %v", got, err)
	}
	// 1000 bytes are two chunks, 512 times 35 thirty-five.
	for i, chunks := range map[int]int{1: 2, 18: 36} {
		got, err := os.ReadFile(filepath.Join(back, fmt.Sprint("d", i%3), fmt.Sprint(".f", i, ".crc")))
		if err != nil || len(got) != 8+4*chunks {
			t.Errorf("%d bytes for %d chunks, %v", len(got), chunks, err)
		}
	}
}

// rm -safely asks before many files are removed for good, and keeps them unless it is told yes.
func TestSafelyAsks(t *testing.T) {
	s := startShell(t)
	client, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 2 * (manyFiles + 1) {
		if err := client.WriteFile(t.Context(), fmt.Sprint([]string{"/many/", "/too-many/"}[i%2], i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for in, code := range map[string]int{"n\n": 0, "what?\nN\n": 0, "": 1} {
		if a := s.perform(in, "rm", "-r", "-skipTrash", "-safely", "/many"); a.Code != code || !strings.Contains(a.Err, "Proceed deleting 101 files?") {
			t.Errorf("%q: %+v", in, a)
		}
		s.must("test", "-d", "/many")
	}
	if a := s.perform("y\nyes\n", "rm", "-r", "-skipTrash", "-safely", "/many", "/too-many"); a.Code != 0 || a.Out != "Deleted /many\nDeleted /too-many\n" {
		t.Errorf("yes: %+v", a)
	}
}

// Help and usage are of the commands that are named, by older names and aliases, too.
func TestHelpIsOfCommands(t *testing.T) {
	s := &shell{t: t}
	for _, each := range []struct{ name, says string }{
		{"ls", "List files and directories"}, {"lsr", "List files and directories"}, {"copyFromLocal", "Store local files and trees"}, {"help", "what commands do"},
	} {
		if got := s.must("-help", each.name); !strings.Contains(got, each.says) || !strings.Contains(got, "Usage:") {
			t.Errorf("-help %s: %s", each.name, got)
		}
	}
	if got := s.must("-usage", "copyToLocal"); !strings.HasPrefix(got, "Usage: fs get ") {
		t.Errorf("-usage copyToLocal: %s", got)
	}
	if all := s.must("-help"); !strings.Contains(all, "List files and directories") || !strings.Contains(all, "Remove empty directories") {
		t.Errorf("-help: %s", all)
	}
	for _, verb := range []string{"help", "usage"} {
		if a := s.perform("", "-"+verb, "lsx"); a.Code != 255 || a.Err != "-"+verb+": `lsx': Unknown command\n" {
			t.Errorf("%+v", a)
		}
	}
}

// A bad pattern of find is told at once, whatever is there.
func TestFindRefusesBadPatterns(t *testing.T) {
	s := startShell(t)
	for _, flag := range []string{"-name", "-iname"} {
		for _, pattern := range []string{"x[", "x{", `x\`} {
			if a := s.perform("", "find", "/", flag, pattern); a.Code != 255 || a.Out != "" || !strings.HasPrefix(a.Err, "-find: error parsing regexp: ") {
				t.Errorf("find %s %s: %+v", flag, pattern, a)
			}
		}
	}
}

// touchz makes an empty file anew, now and as whoever asks for it.
func TestTouchzMakesAnew(t *testing.T) {
	s := startShell(t)
	s.must("mkdir", "/d")
	s.must("chmod", "777", "/d")
	s.must("touch", "-t", "20200102:030405", "/d/f")
	before := s.must("stat", "%Y", "/d/f")
	s.must("touchz", "/d/f")
	if after := s.must("stat", "%Y", "/d/f"); after == before {
		t.Errorf("touchz leaves the time %s", after)
	}
	s.must("chmod", "666", "/d/f")
	s.as("ada").must("touchz", "/d/f")
	if owner := s.must("stat", "%u", "/d/f"); owner != "ada\n" {
		t.Errorf("what ada makes anew is %s's", owner)
	}
}

// After an error that is not about one path a walk ends.
func TestWalksEndWithTheConnection(t *testing.T) {
	shell := startShell(t)
	shell.must("mkdir", "-p", "/d/a/b", "/d/c")
	client, err := shell.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var said strings.Builder
	lost := errors.New("the connection is lost")
	refused := &hdfs.ServerError{Class: exception.AccessControl, Message: "no"}
	for _, c := range []struct {
		err  error
		want []string
	}{{lost, []string{"/d", "/d/a"}}, {refused, []string{"/d", "/d/a", "/d/c"}}} {
		said.Reset()
		s := &session{client: client, errOut: &said, verb: "walk"}
		var got []string
		err := s.walk(t.Context(), "/d", true, func(at string, _ *hdfs.FileInfo) error {
			if got = append(got, at); at == "/d/a" {
				return c.err
			}
			return nil
		})
		if err == nil || !slices.Equal(got, c.want) || strings.Count(said.String(), "walk: ") != 1 {
			t.Errorf("%v: %v, %v, %q", c.err, got, err, said.String())
		}
	}
}

// What goes to the trash is there for the user whom the command is of, and of what can't go
// there nothing is lost.
func TestRemovalsToTheTrash(t *testing.T) {
	s := startShell(t)
	s.must("mkdir", "-p", "/user/ada", "/t")
	s.must("chown", "ada", "/user/ada", "/t")
	ada := s.as("ada", "fs.trash.interval=60")
	ada.must("touchz", "/t/f")
	if a := ada.perform("", "rm", "/t/f"); a.Code != 0 || a.Out != "" || a.Err != "/t/f is in the trash now: /user/ada/.Trash/Current/t/f\n" {
		t.Errorf("%+v", a)
	}
	if a := ada.perform("", "rm", "-r", "/user"); a.Code != 1 || a.Err != "rm: Failed to move /user to the trash: trash /user: the trash is in it. Consider using -skipTrash option\n" {
		t.Errorf("%+v", a)
	}
	if a := ada.perform("", "rm", "-r", "/"); a.Code != 1 {
		t.Errorf("%+v", a)
	}
	if a := s.perform("", "rm", "-r", "/"); a.Code != 1 || a.Err != "rm: the root directory can't be removed\n" {
		t.Errorf("%+v", a)
	}
	if got := ada.must("rm", "-r", "/user/ada/.Trash/Current"); got != "Deleted /user/ada/.Trash/Current\n" {
		t.Errorf("%s", got)
	}
}

// A command without the flag that says what to do, or with two of them, makes no sense whatever is there:
// its exit code is 255.
func TestFlagsOfWhichOneIsWanted(t *testing.T) {
	s := startShell(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"setfacl", "/"}, "-setfacl: Expected one of -b, -k, -m, -x or --set options\n"},
		{[]string{"getfattr", "/"}, "-getfattr: Must specify '-n name' or '-d' option.\n"},
		{[]string{"setfattr", "/"}, "-setfattr: Must specify '-n name' or '-x name' option.\n"},
		{[]string{"setfattr", "-n", "user.a", "-x", "user.b", "/"}, "-setfattr: Can not specify both '-n name' and '-x name' option.\n"},
	} {
		if a := s.perform("", c.args...); a.Code != 255 || a.Err != c.want {
			t.Errorf("%v: %+v, want %q", c.args, a, c.want)
		}
	}
}

// A directory that is missing here is told of by the path that was typed.
func TestGetIntoWhatIsMissing(t *testing.T) {
	s := startShell(t)
	s.must("touchz", "/file")
	to := filepath.Join(t.TempDir(), "missing", "file")
	if a := s.perform("", "get", "/file", to); a.Code != 1 || a.Err != "get: `"+to+"': No such file or directory\n" {
		t.Errorf("%+v", a)
	}
}

// Only where nobody has answered a NameNode may be missing: not behind a NameNode's refusal, nor an interrupt.
func TestOnlyAnAbsentNameNodeIsAskedFor(t *testing.T) {
	unreached := fmt.Errorf("connection refused: %w", hdfs.ErrNoNameNode)
	for _, c := range []struct {
		err, ended error
		want       bool
	}{
		{unreached, nil, true},
		{unreached, errors.New("interrupted"), false},
		{&hdfs.ServerError{Class: exception.Standby, Message: "in standby"}, nil, false},
		{&hdfs.ServerError{Class: exception.Retriable, Message: "later"}, nil, false},
	} {
		var said strings.Builder
		s := &session{verb: "ls", errOut: &said, ended: func() error { return c.ended }}
		_ = s.say(c.err) // that it has told
		if got := strings.Contains(said.String(), "is a NameNode running there?"); got != c.want || said.Len() == 0 {
			t.Errorf("%v, ended by %v: %s", c.err, c.ended, &said)
		}
	}
}

// Numbers of replicas that nothing can have are refused, and setrep -w shows that it waits, as
// Hadoop's command does.
func TestReplicas(t *testing.T) {
	s := startShell(t)
	local := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(local, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"0", "-1"} {
		if a := s.perform("", "put", "--replication", n, local, "/refused"); a.Code == 0 || !strings.Contains(a.Err, "--replication "+n+": want 1 or more") {
			t.Errorf("put --replication %s: %+v", n, a)
		}
	}
	s.must("put", "--replication", "3", local, "/file")
	for _, n := range []string{"3", "1"} {
		got := s.must("setrep", "-w", n, "/file") // with a dot more for each look, as the DataNodes' reports may take a while
		more, begins := strings.CutPrefix(got, "Replication "+n+" set: /file\nWaiting for /file ...")
		if warned := strings.Contains(more, "WARNING"); !begins || !strings.HasSuffix(more, " done\n") || warned && n == "3" {
			t.Errorf("it says %q", got)
		}
	}
}

// A file that nobody may read is stored as one, by root, who reads it.
func TestPutOfAFileWithoutRights(t *testing.T) {
	local := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(local, []byte("content"), 0); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Open(local); err != nil {
		t.Skip("only root can read it")
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s := startShell(t)
	s.must("put", local, "/file")
	if mode := s.must("stat", "%a", "/file"); mode != "0\n" {
		t.Errorf("it has the mode %s", mode)
	}
}
