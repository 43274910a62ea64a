package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/cmd/verbena/internal/demo"
	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/providers"
)

// asVerbena makes the test binary be the command, for tests that need it as a
// process of its own.
const asVerbena = "VERBENA_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asVerbena) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// run runs a command in this process and returns what it prints.
func run(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := execute(t.Context(), cmd, args)
	return out.String(), err
}

// startUp runs `verbena up` as a process.
func startUp(t *testing.T, dir string, listen string, more ...string) *processes.Process {
	t.Helper()
	t.Setenv(asVerbena, "1")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	address := filepath.Join(t.TempDir(), "address")
	args := append([]string{"up", "--dir", dir, "--listen", listen, "--datanodes", "2", "--address-file", address}, more...)
	p, err := processes.Start(t.Context(), "verbena up", address, self, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// fileCommands are commands of `verbena fs`, one after the other. LOCAL is a directory
// with files to be stored, OUT one that is not there.
var fileCommands = []struct {
	stdin string
	args  string
	want  string // a part of the output; "!" means that an error must hold the rest
}{
	{"", "mkdir /a", ""},
	{"", "mkdir /a/b/c", "!No such file"},
	{"", "mkdir -p /a/b/c", ""},
	{"", "put LOCAL/small /a/", ""},
	{"", "put LOCAL/small /a/", "!File exists"},
	{"", "put -f LOCAL/small /a/", ""},
	{"", "put -r LOCAL /tree", ""},
	{"from stdin", "put - /a/stdin", ""},
	{"", "cat /a/stdin /a/small", "from stdinhello\n"},
	{"", "cat /a", "!Is a directory"},
	{"", "cat /missing", "!No such file"},
	{"", "ls -C -R /tree", "/tree/big\n/tree/small\n/tree/sub\n/tree/sub/empty\n"},
	{"", "ls -l /a", "-rw-r-----   2"},
	{"", "ls --json /a/small", `"length":6`},
	{"", "stat %b /tree/big", "3200000"},
	{"", "stat --json /tree", `"type":"directory"`},
	{"", "stat --json /tree/sub", `"mode":"0550"`},
	{"", "du -s /tree", "3200006  "},
	{"", "df --json", `"missing_blocks":0`},
	{"", "chmod u=rwx,go=rx /a/small", ""},
	{"", "stat %a/%F /a/small", "755/regular file"},
	{"", "chmod 8 /a/small", "!no mode"},
	{"", "chown ada:staff /a/small", ""},
	{"", "ls -l /a/small", " ada staff "},
	{"", "touch /a/touched", ""},
	{"", "touch /a/touched", ""},
	{"", "checksum --sum /tree/small /a/small", "  /tree/small\n"},
	{"", "checksum /tree/small", "/tree/small\tMD5-of-0MD5-of-512CRC32C\t00000200"},
	{"", "find /tree --name s* --type f", "/tree/small\n"},
	{"", "cat /tree/sma*", "hello\n"},
	{"", "ls -C /{tree,a}/s*", "/a/small\n/a/stdin\n/tree/small\n/tree/sub/empty\n"},
	{"", "cat /tree/nothing*", "!No such file"},
	{"", "ls -h -l /tree/big", "3.1 M"},
	{"", "cp -p /tree /copied", ""},
	{"", "ls -C -R /copied", "/copied/big\n/copied/small\n/copied/sub\n/copied/sub/empty\n"},
	{"", "stat --json /copied/sub", `"mode":"0550"`},
	{"", "cp /tree /tree/below", "!a subdirectory of itself"},
	{"", "cp /tree/small /tree/big", "!File exists"},
	{"", "chgrp -R crew /copied", ""},
	{"", "ls -l /copied/small", "crew"},
	{"", "rmdir /copied", "!not empty"},
	{"", "rmdir --ignore-fail-on-non-empty /copied", ""},
	{"", "rmdir /copied/small", "!Is not a directory"},
	{"", "getmerge --nl /a/small /tree/small OUT.merged", ""},
	{"", "rm -r --skipTrash /copied", "Deleted /copied\n"},
	{"", "mkdir /copied", ""},
	{"", "rmdir /copied", ""},
	{"", "touchz /a/zero", ""},
	{"", "touchz /a/zero", ""},
	{"", "touchz /a/small", "!Not a zero-length file"},
	{"", "rm /a/zero", "Deleted /a/zero\n"},
	{"", "text /a/small", "hello\n"},
	{"", "expunge", ""},
	{"", "cat --legacy-transfers /a/small", "hello\n"},
	{"", "cat --explain /a/small", "hello\n"},
	{"", "find /tree --name [", "!Unclosed character class"},
	{"more", "append - /a/small", ""},
	{"", "tail /a/small", "hello\nmore"},
	{"", "head /a/small", "hello\nmore"},
	{"", "truncate -w 6 /a/small", "Truncated /a/small to length: 6"},
	{"", "cat /a/small", "hello\n"},
	{"", "test -f /a/small", ""},
	{"", "test -d /a/small", "!no"},
	{"", "test -e /missing", "!no"},
	{"", "count /tree", "           2            3            3200006 /tree"},
	{"", "setrep 1 /a/small", "Replication 1 set: /a/small"},
	{"new", "append - /a/joined", ""},
	{"", "setfacl -m user:ada:r-x,default:group:staff:r-- /a", ""},
	{"", "getfacl /a", "user:ada:r-x"},
	{"", "getfacl /a", "default:group:staff:r--"},
	{"", "setfacl -m nobody /a", "!no entry of an ACL"},
	{"", "setfacl -b /a", ""},
	{"", "setfattr -n user.color --value blue /a/small", ""},
	{"", "getfattr -d /a/small", "user.color=\"blue\""},
	{"", "getfattr -e hex -n user.color /a/small", "user.color=0x626c7565"},
	{"", "setfattr -x user.color /a/small", ""},
	{"", "mv /a/touched /a/b", ""},
	{"", "mv /a/small /a/stdin", "!File exists"},
	{"", "mv -f /a/small /a/stdin", ""},
	{"", "cat /a/stdin", "hello\n"},
	{"", "ls -C /a/b", "/a/b/c\n/a/b/touched\n"},
	{"", "get /tree/small -", "hello\n"},
	{"", "get -r /tree OUT", ""},
	{"", "get /tree/small OUT/small", "!File exists"},
	{"", "rm /tree", "!Is a directory"},
	{"", "rm -r /tree", ""},
	{"", "rm /tree", "!No such file"},
	{"", "rm -f /tree", ""},
	{"", "rm -r /", "!root directory"},
	{"", "chmod 600 /a/stdin", ""},
	{"", "cat --user mallory /a/stdin", "!Permission denied: user=mallory"},
}

func TestFileCommands(t *testing.T) {
	dir := t.TempDir()
	up := startUp(t, filepath.Join(dir, "data"), "127.0.0.1:0")
	local := filepath.Join(dir, "local")
	if err := os.MkdirAll(filepath.Join(local, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	for name, content := range map[string][]byte{"small": []byte("hello\n"), "big": big, "sub/empty": nil} {
		if err := os.WriteFile(filepath.Join(local, name), content, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	// A directory has its mode at the end, but is filled before.
	readOnly := filepath.Join(local, "sub")
	if err := os.Chmod(readOnly, 0o550); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	t.Cleanup(func() {
		// So that they can be removed.
		_ = os.Chmod(readOnly, 0o700)
		_ = os.Chmod(filepath.Join(out, "sub"), 0o700)
	})
	for _, step := range fileCommands {
		args := strings.NewReplacer("LOCAL", local, "OUT", out).Replace(step.args)
		got, err := run(t, step.stdin, append([]string{"fs", "--namenode", up.Address}, strings.Fields(args)...)...)
		if want, ok := strings.CutPrefix(step.want, "!"); ok {
			if err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(strings.ReplaceAll(err.Error(), "does not exist", "no such file"), want) {
				t.Errorf("fs %s: error %v, want one with %q", step.args, err, want)
			}
		} else if err != nil || !strings.Contains(got, want) {
			t.Errorf("fs %s: %q, %v, want %q", step.args, got, err, want)
		}
	}
	if got, err := os.ReadFile(filepath.Join(out, "big")); err != nil || !bytes.Equal(got, big) {
		t.Errorf("what was fetched differs from what was stored: %v", err)
	}
	if info, err := os.Stat(filepath.Join(out, "small")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(out, "sub")); err != nil || info.Mode().Perm() != 0o550 {
		t.Errorf("%v %v", info, err)
	}
	if got, err := os.ReadFile(out + ".merged"); err != nil || string(got) != "hello\n\nhello\n\n" {
		t.Errorf("merged: %q %v", got, err)
	}
	if err := up.Stop(); err != nil {
		t.Errorf("up does not stop in order: %v", err)
	}
}

func TestUpComesBackAfterKill(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := startUp(t, data, "127.0.0.1:0")
	content := strings.Repeat("kept", 100_000)
	for _, transport := range []string{"tcp", "shm", "iwarp"} {
		if out, err := run(t, content, "fs", "--namenode", up.Address, "--transport", transport, "put", "-", "/"+transport); err != nil {
			t.Fatalf("%s: %s %v", transport, out, err)
		}
	}
	up.Kill()
	up = startUp(t, data, up.Address)
	for _, transport := range []string{"tcp", "shm", "iwarp"} {
		got, err := run(t, "", "fs", "--namenode", up.Address, "--transport", transport, "cat", "/"+transport)
		if err != nil || got != content {
			t.Errorf("%s: %d bytes, %v", transport, len(got), err)
		}
	}
}

func TestInfo(t *testing.T) {
	up := startUp(t, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
	out, err := run(t, "", "info", "--json", up.Address)
	if err != nil {
		t.Fatal(err)
	}
	var info hostInfo
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if info.Selection == nil || info.Selection.Transport != "shm" || len(info.Providers) != len(providers.Names()) {
		t.Errorf("%s", out)
	}
	out, err = run(t, "", "info", up.Address)
	if err != nil || !strings.Contains(out, "shm0") || !strings.Contains(out, "* shm") {
		t.Errorf("%s %v", out, err)
	}
	if out, err := run(t, "", "info", "127.0.0.1:1"); err == nil {
		t.Errorf("nobody is there, and yet: %s", out)
	}
}

func TestDemo(t *testing.T) {
	tree := t.TempDir()
	for i := range 20 {
		sum := sha256.Sum256([]byte{byte(i)})
		if err := os.WriteFile(filepath.Join(tree, fmt.Sprint("file-", i)), bytes.Repeat(sum[:], i*100), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(asVerbena, "1")
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	out, err := run(t, "", "demo", "--quick", "--json", "--tree", tree, "--large-file", "30000000", "--records", "500000")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var result struct {
		Rows []map[string]any `json:"rows"`
		Jobs []map[string]any `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Rows) != 3 || len(result.Jobs) != 3 {
		t.Fatalf("%s", out)
	}
	for _, row := range result.Rows {
		for _, key := range []string{"write_mb_per_s", "read_mb_per_s", "cpu_s", "create_p50_us", "create_p99_us"} {
			if v, ok := row[key].(float64); !ok || v <= 0 {
				t.Errorf("%v: %s is %v", row["transport"], key, row[key])
			}
		}
		if row["verified"] != true {
			t.Errorf("%v is not verified", row["transport"])
		}
	}
	for _, row := range result.Jobs {
		for _, key := range []string{"words_mb_per_s", "words_cpu_s", "sort_mb_per_s", "sort_cpu_s"} {
			if v, ok := row[key].(float64); !ok || v <= 0 {
				t.Errorf("%v: %s is %v", row["transport"], key, row[key])
			}
		}
		if row["verified"] != true {
			t.Errorf("the jobs over %v are not verified", row["transport"])
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v behind, %v", left, err)
	}
	var table bytes.Buffer
	if err := (&demo.Result{Rows: []demo.Row{{Transport: "shm", WriteMB: 1, Verified: false}}}).Table(&table); err != nil || !strings.Contains(table.String(), "DIFFERS") {
		t.Errorf("%v %s", err, table.String())
	}
}

// A server with --metrics tells what its endpoints carried.
func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	up := startUp(t, filepath.Join(dir, "data"), "127.0.0.1:0", "--metrics", "127.0.0.1:0")
	if out, err := run(t, "some bytes", "fs", "put", "--namenode", up.Address, "--transport", "tcp", "-", "/file"); err != nil {
		t.Fatal(err, out)
	}
	_, after, found := strings.Cut(up.Log(), "http://")
	if !found {
		t.Fatalf("no address of the metrics: %s", up.Log())
	}
	address, _, _ := strings.Cut(after, "\n")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`verbena_endpoints_opened_total{device="",transport="tcp"} [1-9]`, `verbena_message_bytes_total{device="",direction="received",transport="tcp"} [1-9]`,
		`verbena_hadoop_rpc_call_seconds_count{`, `go_goroutines [1-9]`,
	} {
		if !regexp.MustCompile("(?m)^" + strings.ReplaceAll(want, "{", "\\{")).Match(body) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	base, _, _ := strings.Cut("http://"+address, "/metrics")
	if want := "Status at " + base + "/\n"; !strings.Contains(up.Log(), want) {
		t.Errorf("%q is missing in %s", want, up.Log())
	}
	var told struct {
		Process struct {
			Command string
			PID     int
		}
		Runtime struct {
			Closed    bool
			Traffic   []map[string]any
			Endpoints []struct{ Service, Transport, Why string }
		}
	}
	fetchJSON(t, base+"/status.json", &told)
	if p, r := told.Process, told.Runtime; p.Command != "verbena up" || p.PID == 0 || r.Closed || len(r.Endpoints) == 0 || r.Endpoints[0].Service == "" || r.Endpoints[0].Why == "" {
		t.Errorf("%+v", told)
	}
	overTCP := func(d map[string]any) bool { return d["transport"] == "tcp" && d["opened"].(float64) > 0 }
	if !slices.ContainsFunc(told.Runtime.Traffic, overTCP) {
		t.Errorf("%+v", told.Runtime.Traffic)
	}
	if _, err := run(t, "", "up", "--dir", filepath.Join(dir, "other"), "--listen", "127.0.0.1:0", "--metrics", address[:strings.Index(address, "/")]); err == nil || !strings.Contains(err.Error(), "--metrics") {
		t.Errorf("on a port that is taken: %v", err)
	}
}

// fetchJSON decodes what is at an address.
func fetchJSON(t *testing.T, address string, into any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
}

func TestUsageErrors(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	taken := busy.Addr().String()
	for _, test := range []struct{ args, want string }{
		{"up --listen a:b:c", "write HOST or HOST:PORT"},
		{"up --datanodes 0", "at least one DataNode"},
		{"up --datanodes 2 --replication 3", "do not fit"},
		{"demo --datanodes 1 --replication 2", "need as many DataNodes"},
		{"demo --clients 0", "--clients is 0: want 1 or more"},
		{"demo --clients -1", "--clients is -1: want 1 or more"},
		{"demo --records -1", "--records is -1"},
		{"demo --large-file -1", "--large-file -1: want bytes"},
		{"demo --replication 0", "--replication is 0"},
		{"demo --tree /nonexistent", "--tree /nonexistent is no directory"},
		{"demo --transports auto", "each row is of one transport: choose of "},
		{"fs --namenode 127.0.0.1:1 ls /", "connection refused: is a NameNode running there? --namenode names another one"},
		{"fs --namenode 127.0.0.1:1 --transport carrier-pigeon ls /", `no transport "carrier-pigeon": choose auto, `},
		{"demo --quick --transports tcp,carrier-pigeon", "carrier-pigeon"},
		{"gensort 10 hdfs://127.0.0.1:1/f", "connection refused: is a NameNode running there? hdfs://HOST:PORT/PATH names it"},
		{"up --listen 0.0.0.0", "name one of this host's addresses"},
		{"up --listen :0", "name one of this host's addresses"},
		{"up --listen " + taken, "choose other ports with --listen and --datanode-port"},
		{"namenode --listen " + taken, "choose other ports with --listen"},
		{"datanode --listen " + taken, "choose other ports with --listen"},
		{"up --listen 127.0.0.1:0 --native-memory -1", "--native-memory"},
		{"datanode --listen 127.0.0.1:0 --native-memory -1", "--native-memory"},
		{"namenode check", "there is no journal"},
		{"namenode chekc", `unknown command "chekc" for "verbena namenode": did you mean check?`},
		{"namenode nonsense", "verbena namenode --help lists the commands"},
		{"perf a b", "2 arguments: usage: verbena perf "},
		{"up --datanodes 99999999999999999999", "--datanodes 99999999999999999999: the number is out of range"},
		{"namenode recover", "there is no journal"},
		{"nonsense", `unknown command "nonsense" for "verbena": verbena --help lists the commands`},
		{"pefr", "did you mean perf?"},
		{"gensort 5", "1 arguments: usage: verbena gensort RECORDS FILE [flags]"},
		{"sort", "0 arguments: usage: verbena sort [flags] [-o OUT] FILE..."},
		{"perf serve x", "1 arguments: usage: verbena perf serve [flags]"},
		{"up --datanodes x", "--datanodes x: want a whole number"},
		{"up --dead-after 5", "--dead-after 5: want a time with its unit, such as 300ms, 30s or 5m"},
		{"up --native-memory 5x", "--native-memory 5x: want bytes, such as 512MiB or 2G, or -1"},
		{"up --nonsense", "unknown flag: --nonsense: verbena up --help lists the flags"},
		{"up --replication -1", "--replication -1: want 1 or more"},
		{"namenode --replication 0", "--replication 0: want 1 or more"},
		{"namenode --lease-limit -1s", "--lease-limit -1s: want more than 0"},
		{"namenode --listen a:b:c", "write HOST or HOST:PORT"},
		{"datanode --listen a:b:c", "write HOST or HOST:PORT"},
		{"datanode --listen 127.0.0.1:0 --namenode a:b:c", "--namenode a:b:c"},
		{"info --operation read", "name it, as in verbena info HOST"},
		{"info --size -1", "--size -1: want bytes"},
		{"pairs nonsense", `no operation "nonsense": choose groupby or sortby`},
		{"groupby --format nonsense x", `no format "nonsense": choose csv, tsv, jsonl or words`},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel() // some wait for servers that are not there
			args := strings.Fields(test.args)
			if args[0] == "up" || strings.HasSuffix(args[0], "node") {
				args = append(args, "--dir", t.TempDir())
			}
			if out, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q; it printed %s", err, test.want, out)
			}
		})
	}
}

// A tenth of little is something.
func TestQuickDemoOfLittle(t *testing.T) {
	cfg := demo.Config{Creates: 5, Workers: 1, DataNodes: 1, Replicas: 1, LargeFile: 5, Records: 5}
	if err := demoSizes(&cfg, true); err != nil || cfg.Creates != 1 || cfg.LargeFile != 1 || cfg.Records != 1 {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestDefaultDirectory(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", "/data")
	if dir, err := defaultDir(); err != nil || dir != "/data/verbena" {
		t.Errorf("%s %v", dir, err)
	}
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("HOME", "/home/ada")
	if dir, err := defaultDir(); err != nil || dir != "/home/ada/.local/share/verbena" {
		t.Errorf("%s %v", dir, err)
	}
}

// The file commands take Hadoop's properties one by one and by file, and the NameNodes of a
// name service that these tell of, of which the first may be gone.
func TestFileCommandsTakeHadoopsConfiguration(t *testing.T) {
	t.Setenv("HADOOP_CONF_DIR", "")
	t.Setenv("HADOOP_HOME", "")
	up := startUp(t, t.TempDir(), "127.0.0.1:0")
	defer up.Stop()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	file := filepath.Join(t.TempDir(), "site.xml")
	site := "<configuration>"
	for name, value := range map[string]string{
		"dfs.nameservices": "service", "dfs.ha.namenodes.service": "a,b", "dfs.namenode.rpc-address.service.a": gone.Addr().String(), "dfs.namenode.rpc-address.service.b": up.Address,
		"dfs.blocksize": "1m", "dfs.replication": "2",
	} {
		site += "<property><name>" + name + "</name><value>" + value + "</value></property>"
	}
	if err := os.WriteFile(file, []byte(site+"</configuration>"), 0o644); err != nil {
		t.Fatal(err)
	}
	fs := []string{"fs", "--transport", "tcp", "--namenode", "hdfs://service", "--hadoop-conf", file, "-D", "dfs.replication=1", "-D", "unknown.to.clients=x"}
	if out, err := run(t, "some bytes", append(fs, "put", "-", "/file")...); err != nil {
		t.Fatal(out, err)
	}
	if out, err := run(t, "", append(fs, "stat", "%r %o", "/file")...); err != nil || out != "1 1048576\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := run(t, "", append(fs, "-D", "dfs.checksum.type=NONE", "ls", "/")...); err == nil || !strings.Contains(err.Error(), "dfs.checksum.type (-D)") {
		t.Errorf("a value that is no good: %q, %v", out, err)
	}
}
