package namenode

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

var letterFile = flag.String("letter", "testdata/letter*.gz", "the answers of Apache HDFS that TestLetter compares with, as go run ./soak letter --record keeps them")

// TestLetter repeats operations that Apache's NameNode has answered. Each episode of them
// begins with an empty file system, and ends with the first difference.
func TestLetter(t *testing.T) {
	records, err := filepath.Glob(*letterFile)
	if err != nil || len(records) == 0 {
		t.Fatalf("%s: no record (%v)", *letterFile, err)
	}
	for _, name := range records {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".gz"), func(t *testing.T) { replayLetter(t, name) })
	}
}

func replayLetter(t *testing.T, name string) {
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	l := newLetter(t)
	operations, differences, skip := 0, 0, false
	for lines.Scan() {
		op := lines.Text()
		if !lines.Scan() {
			t.Fatalf("operation %q has no answer", op)
		}
		want := lines.Text()
		operations++
		if strings.HasSuffix(op, "\treset") {
			skip = false
		}
		if skip {
			continue
		}
		f := strings.Split(op, "\t")
		if got, want := comparable(f[1], l.answer(f), want); got != want {
			skip = true
			if differences++; differences <= 40 {
				t.Errorf("operation %d: %s\nApache HDFS: %s\nVerbena:     %s", operations, strings.ReplaceAll(op, "\t", " "), want, got)
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if operations == 0 {
		t.Fatal("the record is empty")
	}
	t.Logf("%d operations, %d episodes with a difference", operations, differences)
}

// comparable leaves out of two answers to getQuotaUsage which of several directories has refused it, since
// Apache's NameNode looks at the last ones first, and counts by kinds of storage of which one is less than nothing there: it
// counts them wrongly.
func comparable(operation, got, want string) (string, string) {
	switch refused := "!" + string(exception.AccessControl); {
	case operation != "getQuotaUsage":
	case strings.HasPrefix(got, refused) && strings.HasPrefix(want, refused):
		return refused, refused
	case strings.Contains(want, "=-"):
		got, want = typesCounted.ReplaceAllString(got, ""), typesCounted.ReplaceAllString(want, "")
	}
	return got, want
}

var typesCounted = regexp.MustCompile(` [A-Z].*`)

// letter runs operations as soak/letter/Oracle.java does, and writes the answers
// in the same way.
type letter struct {
	*rig
	datanode *fakeDatanode
	slots    map[string]*letterSlot
}

// letterSlot is a file as its writer knows it.
type letterSlot struct {
	id   uint64
	size uint64 // of its blocks
	last *hdfspb.ExtendedBlockProto
	// awaited: no DataNode has told of the last block yet.
	awaited bool
}

func newLetter(t *testing.T) *letter {
	r := newRig(t, func(c *Config) {
		c.ListLimit = 4
		c.Groups = func(u string) []string {
			return map[string][]string{"alice": {"staff"}, "bob": {"staff", "users"}, "carol": {"users"}}[u]
		}
	})
	l := &letter{rig: r, datanode: r.datanodes(1)[0], slots: map[string]*letterSlot{}}
	l.datanode.recover = l.recover
	return l
}

// recover ends the recovery of a block. It may be refused: then the file stays open.
func (l *letter) recover(c *clusterpb.Command) {
	b, d := c.GetBlock(), l.datanode
	req := &clusterpb.CommitRecoveryRequest{Uuid: &d.uuid, Block: blockPB(b.GetId(), b.GetGeneration(), 0), NewGeneration: c.NewGeneration}
	if held := d.replicas[b.GetId()]; held != nil {
		req.Block.Length = held.GetBlock().Length
		if c.TruncateTo != nil {
			req.Block.Length = c.TruncateTo
		}
		req.Datanodes = []*clusterpb.Datanode{d.pb()}
	}
	if len(req.GetDatanodes()) > 0 {
		d.store(b.GetId(), c.GetNewGeneration(), req.GetBlock().GetLength(), clusterpb.ReplicaState_FINALIZED)
		d.changed(clusterpb.ReplicaChange_RECEIVED, d.replicas[b.GetId()])
	}
	if _, err := l.nn.CommitRecovery(context.Background(), req); err != nil {
		l.t.Logf("recovery of block %d: %v", b.GetId(), err)
	}
}

func (l *letter) slot(name string) *letterSlot {
	if l.slots[name] == nil {
		l.slots[name] = &letterSlot{}
	}
	return l.slots[name]
}

// path replaces @3 by the id of the file in slot 3.
func (l *letter) path(p string) *string {
	if at := strings.IndexByte(p, '@'); at >= 0 {
		end := at + 1
		for end < len(p) && p[end] >= '0' && p[end] <= '9' {
			end++
		}
		p = p[:at] + strconv.FormatUint(l.slot(p[at+1:end]).id, 10) + p[end:]
	}
	return &p
}

func (l *letter) answer(f []string) string {
	out, err := l.run(f)
	if err == nil {
		return out
	}
	var refused *exception.Error
	if errors.As(err, &refused) {
		out := "!" + string(refused.Class)
		if attributeOperations[f[1]] != nil || strings.Contains(out, "Quota") {
			out += ": " + inodePath.ReplaceAllString(refused.Message, "$1#")
		}
		return out
	}
	return "no exception of Java's: " + err.Error()
}

// inodePath is a path with the number of a file, which each server makes in its own way.
var inodePath = regexp.MustCompile(`(/\.inodes/)\d+`)

func (l *letter) number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *letter) unsigned(s string) *uint64 { return proto.Uint64(uint64(l.number(s))) }

// perm reads a mode. That before a client's umask may follow a colon.
func (l *letter) perm(octal string) *hdfspb.FsPermissionProto {
	octal, _, _ = strings.Cut(octal, ":")
	n, err := strconv.ParseUint(octal, 8, 16)
	if err != nil {
		l.t.Fatal(err)
	}
	return &hdfspb.FsPermissionProto{Perm: proto.Uint32(uint32(n))}
}

func (l *letter) unmasked(octal string) *hdfspb.FsPermissionProto {
	if _, unmasked, ok := strings.Cut(octal, ":"); ok {
		return l.perm(unmasked)
	}
	return nil
}

func boolean(s string) *bool { return proto.Bool(s == "true") }

// fit keeps a block as short as its file allows, if that is known, or as any
// file must allow.
func (s *letterSlot) fit(length uint64) *uint64 {
	if s.size == 0 {
		return proto.Uint64(min(length, 512))
	}
	return proto.Uint64(min(length, s.size))
}

// said is what a writer says that its last block has become.
func (s *letterSlot) said(how string) *hdfspb.ExtendedBlockProto {
	if how == "last" {
		return s.last
	}
	return nil
}

func (s *letterSlot) fileID(how string) *uint64 {
	if how == "id" {
		return &s.id
	}
	return proto.Uint64(0)
}

func ok(_ any, err error) (string, error) { return "ok", err }

func result[T interface{ GetResult() bool }](r T, err error) (string, error) {
	return strconv.FormatBool(r.GetResult()), err
}

func (l *letter) run(f []string) (string, error) {
	ctx := l.as(f[0])
	for _, all := range []map[string]func(*letter, context.Context, []string) (string, error){blockOperations, nameOperations, queryOperations, attributeOperations} {
		if run := all[f[1]]; run != nil {
			return run(l, ctx, f)
		}
	}
	l.t.Fatalf("operation %q is not known", f)
	return "", nil
}

func (l *letter) reset(ctx context.Context) error {
	root := "/"
	for _, fs := range l.all(ctx, root) {
		if _, err := l.nn.delete(l.as("root"), &hdfspb.DeleteRequestProto{Src: proto.String("/" + string(fs.GetPath())), Recursive: proto.Bool(true)}); err != nil {
			return err
		}
	}
	clear(l.slots)
	_, err := l.nn.setPermission(ctx, &hdfspb.SetPermissionRequestProto{Src: &root, Permission: l.perm("755")})
	if err == nil {
		_, err = l.nn.setOwner(ctx, &hdfspb.SetOwnerRequestProto{Src: &root, Username: proto.String("root"), Groupname: proto.String("supergroup")})
	}
	if err == nil {
		err = l.resetAttributes(ctx)
	}
	if err == nil {
		_, err = l.nn.setTimes(ctx, &hdfspb.SetTimesRequestProto{Src: &root, Mtime: proto.Uint64(1), Atime: proto.Uint64(1)})
	}
	return err
}

func (l *letter) create(ctx context.Context, f []string) (string, error) {
	var flags uint32
	if strings.Contains(f[5], "c") {
		flags |= flagCreate
	}
	if strings.Contains(f[5], "o") {
		flags |= flagOverwrite
	}
	r, err := l.nn.create(ctx, &hdfspb.CreateRequestProto{
		Src: l.path(f[3]), Masked: l.perm(f[4]), Unmasked: l.unmasked(f[4]), ClientName: &f[9], CreateFlag: &flags, CreateParent: boolean(f[6]),
		Replication: proto.Uint32(uint32(l.number(f[7]))), BlockSize: l.unsigned(f[8]),
	})
	if err != nil {
		return "", err
	}
	*l.slot(f[2]) = letterSlot{id: r.GetFs().GetFileId(), size: r.GetFs().GetBlocksize()}
	return statusText(r.GetFs()), nil
}

func (l *letter) append(ctx context.Context, f []string) (string, error) {
	flag := uint32(4)
	if f[4] == "new" {
		flag |= flagNewBlock
	}
	r, err := l.nn.append(ctx, &hdfspb.AppendRequestProto{Src: l.path(f[3]), ClientName: &f[5], Flag: &flag})
	if err != nil {
		return "", err
	}
	*l.slot(f[2]) = letterSlot{id: r.GetStat().GetFileId(), size: r.GetStat().GetBlocksize(), last: r.GetBlock().GetB()}
	return statusText(r.GetStat()) + " " + locatedText(r.GetBlock()), nil
}

// grow gives a block another generation and length, as a writer does that has
// set up its pipeline anew.
func (l *letter) grow(ctx context.Context, f []string) (string, error) {
	s := l.slot(f[2])
	if s.last == nil {
		return "none", nil
	}
	r, err := l.nn.updateBlockForPipeline(ctx, &hdfspb.UpdateBlockForPipelineRequestProto{Block: s.last, ClientName: &f[3]})
	if err != nil {
		return "", err
	}
	next := r.GetBlock().GetB()
	next.NumBytes = s.fit(*l.unsigned(f[4]))
	if _, err := l.nn.updatePipeline(ctx, &hdfspb.UpdatePipelineRequestProto{
		ClientName: &f[3], OldBlock: s.last, NewBlock: next, StorageIDs: []string{"DS-" + l.datanode.uuid},
		NewNodes: []*hdfspb.DatanodeIDProto{{DatanodeUuid: &l.datanode.uuid, IpAddr: &l.datanode.host, HostName: proto.String(""), XferPort: &l.datanode.port, InfoPort: proto.Uint32(0), IpcPort: proto.Uint32(0)}},
	}); err != nil {
		return "", err
	}
	s.last = next
	l.datanode.receive(next)
	return "ok", nil
}

func (l *letter) all(ctx context.Context, dir string) (out []*hdfspb.HdfsFileStatusProto) {
	after := []byte{}
	for {
		r, err := l.nn.getListing(ctx, &hdfspb.GetListingRequestProto{Src: &dir, StartAfter: after, NeedLocation: proto.Bool(false)})
		if err != nil {
			l.t.Fatal(err)
		}
		list := r.GetDirList()
		out = append(out, list.GetPartialListing()...)
		if list.GetRemainingEntries() == 0 {
			return out
		}
		after = out[len(out)-1].GetPath()
	}
}

func (l *letter) tree(ctx context.Context, dir string) string {
	var out strings.Builder
	for _, fs := range l.all(ctx, dir+"/") {
		path := dir + "/" + string(fs.GetPath())
		out.WriteString(" " + path + "=" + statusText(fs))
		if fs.GetFileType() == hdfspb.HdfsFileStatusProto_IS_DIR {
			out.WriteString(l.tree(ctx, path))
		}
	}
	return out.String()
}

// timeText leaves out what the time is: the two servers have clocks of their own.
func timeText(ms uint64) string {
	if ms >= 1_000_000_000_000 && ms <= math.MaxInt64 {
		return "now"
	}
	return fmt.Sprint(int64(ms))
}

func statusText(fs *hdfspb.HdfsFileStatusProto) string {
	if fs == nil {
		return "null"
	}
	kind := "f"
	if fs.GetFileType() == hdfspb.HdfsFileStatusProto_IS_DIR {
		kind = "d"
	}
	out := fmt.Sprintf("%s%o,%s,%s,%d,%d,%d,%d,%s,%s", kind, fs.GetPermission().GetPerm(), fs.GetOwner(), fs.GetGroup(), fs.GetLength(),
		fs.GetBlockReplication(), fs.GetBlocksize(), fs.GetChildrenNum(), timeText(fs.GetModificationTime()), timeText(fs.GetAccessTime()))
	if fs.GetStoragePolicy() != 0 {
		out += fmt.Sprintf(",policy%d", fs.GetStoragePolicy())
	}
	if fs.GetFlags()&uint32(hdfspb.HdfsFileStatusProto_HAS_ACL) != 0 {
		out += "+"
	}
	if fs.Locations != nil {
		out += "," + locationsText(fs.GetLocations())
	}
	return out
}

func listingText(list *hdfspb.DirectoryListingProto) string {
	if list == nil {
		return "null"
	}
	var out strings.Builder
	for _, fs := range list.GetPartialListing() {
		out.WriteString(string(fs.GetPath()) + "=" + statusText(fs) + " ")
	}
	return out.String() + fmt.Sprint(list.GetRemainingEntries())
}

func locatedText(lb *hdfspb.LocatedBlockProto) string {
	if lb == nil {
		return "null"
	}
	out := fmt.Sprintf("%d+%dx%d", int64(lb.GetOffset()), lb.GetB().GetNumBytes(), len(lb.GetLocs()))
	if lb.GetCorrupt() {
		out += "corrupt"
	}
	return out
}

func locationsText(l *hdfspb.LocatedBlocksProto) string {
	if l == nil {
		return "null"
	}
	out := fmt.Sprintf("{%d", l.GetFileLength())
	for _, lb := range l.GetBlocks() {
		out += " " + locatedText(lb)
	}
	out += " last " + locatedText(l.GetLastBlock())
	if l.GetUnderConstruction() {
		out += " open"
	}
	if !l.GetIsLastBlockComplete() {
		out += " incomplete"
	}
	return out + "}"
}

// TestCompleteAfterAppend closes a file that was opened for an append to which
// nothing came. What the client says of a block that is complete counts for nothing.
func TestCompleteAfterAppend(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	path, client := "/f", "writer"
	b := r.write(path, 1, 700, dns...)
	must[*hdfspb.AppendResponseProto](t)(r.nn.append(r.as("root"), &hdfspb.AppendRequestProto{Src: &path, ClientName: &client, Flag: proto.Uint32(flagNewBlock)}))
	other := proto.CloneOf(b)
	other.BlockId, other.NumBytes = proto.Uint64(b.GetBlockId()+1), proto.Uint64(1)
	if !r.complete(path, client, other) {
		t.Error("the file was not closed")
	}
	if got := r.locations(path); got.GetFileLength() != 700 || got.GetUnderConstruction() {
		t.Errorf("the file has become %v", got)
	}
}

// TestTruncateBelowBlock cuts a file inside its last block: until the DataNodes
// have done so the file is open with its old length, and then its replicas take
// less room.
func TestTruncateBelowBlock(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	path, client := "/f", "cutter"
	r.write(path, 1, 700, dns...)
	cut := func() bool {
		return must[*hdfspb.TruncateResponseProto](t)(r.nn.truncate(r.as("root"), &hdfspb.TruncateRequestProto{Src: &path, NewLength: proto.Uint64(100), ClientName: &client})).GetResult()
	}
	space := func() uint64 {
		return must[*hdfspb.GetContentSummaryResponseProto](t)(r.nn.getContentSummary(r.as("root"), &hdfspb.GetContentSummaryRequestProto{Path: &path})).GetSummary().GetSpaceConsumed()
	}
	for range 2 { // asked again, it is still under way
		if cut() {
			t.Error("a cut inside a block was done at once")
		}
	}
	if got := space(); got != 1024 {
		t.Errorf("a block that is cut counts %d bytes, want the block size, 1024", got)
	}
	_, err := r.nn.append(r.as("root"), &hdfspb.AppendRequestProto{Src: &path, ClientName: proto.String("other")})
	wantClass(t, err, exception.RecoveryInProgress)
	_, err = r.nn.complete(r.as("root"), &hdfspb.CompleteRequestProto{Src: &path, ClientName: &client, Last: r.locations(path).GetLastBlock().GetB()})
	wantClass(t, err, exception.IO)
	for range 3 {
		r.turn(dns)
	}
	if !cut() {
		t.Error("the file is not cut")
	}
	if got := space(); got != 100 {
		t.Errorf("a file of 100 bytes counts %d", got)
	}
}
