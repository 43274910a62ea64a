//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/verbena-data/verbena/internal/testneed"
)

// An entry is a constant of this package and the C expression that it stands for.
type entry struct {
	name, expression string
	value            int64
}

// entries reads the tables: every constant of a file, with its comment. A
// constant without an expression fails the test.
func entries(t *testing.T, file string) []entry {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	info := types.Info{Defs: map[*ast.Ident]types.Object{}}
	// Only constants matter; what else the file uses can stay unknown.
	config := types.Config{Error: func(error) {}, FakeImportC: true}
	_, _ = config.Check("verbs", files, []*ast.File{parsed}, &info)
	var found []entry
	for _, d := range parsed.Decls {
		general, ok := d.(*ast.GenDecl)
		if !ok || general.Tok != token.CONST {
			continue
		}
		for _, s := range general.Specs {
			spec := s.(*ast.ValueSpec)
			name := spec.Names[0]
			expression := strings.TrimSpace(spec.Comment.Text())
			if len(spec.Names) != 1 || expression == "" {
				t.Errorf("%s: %s has no C expression beside it", files.Position(spec.Pos()), name)
				continue
			}
			value := info.Defs[name].(*types.Const).Val()
			number, exact := constant.Int64Val(constant.ToInt(value))
			if !exact {
				t.Fatalf("%s: %s is %v", files.Position(spec.Pos()), name, value)
			}
			found = append(found, entry{name.Name, expression, number})
		}
	}
	return found
}

// structures are the Go structures that C reads and writes directly.
func structures() []entry {
	var s SendWR
	var r RecvWR
	var g SGE
	var c WC
	at := func(structure, field string, offset uintptr, wide uintptr) []entry {
		return []entry{
			{structure + "." + field + " offset", fmt.Sprintf("offsetof(struct %s, %s)", structure, field), int64(offset)},
			{structure + "." + field + " size", fmt.Sprintf("sizeof(((struct %s *)0)->%s)", structure, field), int64(wide)},
		}
	}
	list := []entry{
		{"size of SendWR", "sizeof(struct ibv_send_wr)", int64(unsafe.Sizeof(s))},
		{"size of RecvWR", "sizeof(struct ibv_recv_wr)", int64(unsafe.Sizeof(r))},
		{"size of SGE", "sizeof(struct ibv_sge)", int64(unsafe.Sizeof(g))},
		{"size of WC", "sizeof(struct ibv_wc)", int64(unsafe.Sizeof(c))},
	}
	for _, e := range [][]entry{
		at("ibv_send_wr", "wr_id", unsafe.Offsetof(s.ID), unsafe.Sizeof(s.ID)),
		at("ibv_send_wr", "next", unsafe.Offsetof(s.next), unsafe.Sizeof(s.next)),
		at("ibv_send_wr", "sg_list", unsafe.Offsetof(s.sgList), unsafe.Sizeof(s.sgList)),
		at("ibv_send_wr", "num_sge", unsafe.Offsetof(s.NumSGE), unsafe.Sizeof(s.NumSGE)),
		at("ibv_send_wr", "opcode", unsafe.Offsetof(s.Opcode), unsafe.Sizeof(s.Opcode)),
		at("ibv_send_wr", "send_flags", unsafe.Offsetof(s.Flags), unsafe.Sizeof(s.Flags)),
		at("ibv_send_wr", "imm_data", unsafe.Offsetof(s.immediate), unsafe.Sizeof(s.immediate)),
		at("ibv_send_wr", "invalidate_rkey", unsafe.Offsetof(s.immediate), 4),
		at("ibv_send_wr", "wr.rdma.remote_addr", unsafe.Offsetof(s.remoteAddr), unsafe.Sizeof(s.remoteAddr)),
		at("ibv_send_wr", "wr.rdma.rkey", unsafe.Offsetof(s.union), 4),
		at("ibv_send_wr", "wr.atomic.remote_addr", unsafe.Offsetof(s.remoteAddr), unsafe.Sizeof(s.remoteAddr)),
		at("ibv_send_wr", "wr.atomic.compare_add", unsafe.Offsetof(s.union), 8),
		at("ibv_send_wr", "wr.atomic.swap", unsafe.Offsetof(s.union)+8, 8),
		at("ibv_send_wr", "wr.atomic.rkey", unsafe.Offsetof(s.union)+16, 4),
		at("ibv_recv_wr", "wr_id", unsafe.Offsetof(r.ID), unsafe.Sizeof(r.ID)),
		at("ibv_recv_wr", "next", unsafe.Offsetof(r.next), unsafe.Sizeof(r.next)),
		at("ibv_recv_wr", "sg_list", unsafe.Offsetof(r.sgList), unsafe.Sizeof(r.sgList)),
		at("ibv_recv_wr", "num_sge", unsafe.Offsetof(r.NumSGE), unsafe.Sizeof(r.NumSGE)),
		at("ibv_sge", "addr", unsafe.Offsetof(g.Address), unsafe.Sizeof(g.Address)),
		at("ibv_sge", "length", unsafe.Offsetof(g.Length), unsafe.Sizeof(g.Length)),
		at("ibv_sge", "lkey", unsafe.Offsetof(g.LKey), unsafe.Sizeof(g.LKey)),
		at("ibv_wc", "wr_id", unsafe.Offsetof(c.ID), unsafe.Sizeof(c.ID)),
		at("ibv_wc", "status", unsafe.Offsetof(c.Status), unsafe.Sizeof(c.Status)),
		at("ibv_wc", "opcode", unsafe.Offsetof(c.Opcode), unsafe.Sizeof(c.Opcode)),
		at("ibv_wc", "vendor_err", unsafe.Offsetof(c.VendorError), unsafe.Sizeof(c.VendorError)),
		at("ibv_wc", "byte_len", unsafe.Offsetof(c.Length), unsafe.Sizeof(c.Length)),
		at("ibv_wc", "imm_data", unsafe.Offsetof(c.immediate), unsafe.Sizeof(c.immediate)),
		at("ibv_wc", "invalidated_rkey", unsafe.Offsetof(c.immediate), 4),
		at("ibv_wc", "qp_num", unsafe.Offsetof(c.QPNumber), unsafe.Sizeof(c.QPNumber)),
		at("ibv_wc", "src_qp", unsafe.Offsetof(c.sourceQP), unsafe.Sizeof(c.sourceQP)),
		at("ibv_wc", "wc_flags", unsafe.Offsetof(c.Flags), unsafe.Sizeof(c.Flags)),
	} {
		list = append(list, e...)
	}
	return list
}

// Every entry of the tables is what the installed headers say, on both
// architectures. The expressions become a table in an object file, which is read
// and not run, so that a cross compiler does.
func TestLayoutIsThatOfTheHeaders(t *testing.T) {
	list := append(entries(t, "layout_linux.go"), entries(t, "enums.go")...)
	list = append(list, structures()...)
	if len(list) < 250 {
		t.Errorf("%d entries were found: the tables are not read as a whole", len(list))
	}
	const include = "/usr/include"
	for _, header := range []string{"infiniband/verbs.h", "rdma/rdma_cma.h"} {
		if _, err := os.Stat(filepath.Join(include, header)); err != nil {
			testneed.Missing(t, "the header "+header+" is not installed", "apt-get install libibverbs-dev librdmacm-dev")
		}
	}
	for _, target := range []struct {
		arch, compiler, install string
		machine                 elf.Machine
	}{
		{"amd64", "x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu libc6-dev-amd64-cross", elf.EM_X86_64},
		{"arm64", "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross", elf.EM_AARCH64},
	} {
		t.Run(target.arch, func(t *testing.T) {
			values := evaluate(t, compilerFor(t, target.compiler, target.install), target.machine, list)
			for i, e := range list {
				if values[i] != e.value {
					t.Errorf("%s is %d; %s is %d", e.name, e.value, e.expression, values[i])
				}
			}
		})
	}
}

// compilerFor is the compiler of that name, or gcc if it makes code for the same
// machine.
func compilerFor(t *testing.T, name, install string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if gcc, err := exec.LookPath("gcc"); err == nil {
		machine, err := exec.CommandContext(t.Context(), gcc, "-dumpmachine").Output()
		if err == nil && strings.TrimSpace(string(machine))+"-gcc" == name {
			return gcc
		}
	}
	return testneed.Tool(t, name, "apt-get install "+install)
}

// evaluate compiles the entries' expressions and returns their values.
func evaluate(t *testing.T, compiler string, machine elf.Machine, list []entry) []int64 {
	t.Helper()
	dir := t.TempDir()
	// A cross compiler has a C library of its own: it must see nothing else of
	// the host's headers.
	for _, d := range []string{"infiniband", "rdma"} {
		if err := os.Symlink(filepath.Join("/usr/include", d), filepath.Join(dir, d)); err != nil {
			t.Fatal(err)
		}
	}
	var source bytes.Buffer
	source.WriteString("#include <stddef.h>\n#include <netinet/in.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nconst long long table[] = {\n")
	for _, e := range list {
		fmt.Fprintf(&source, "\t(long long)(%s),\n", e.expression)
	}
	source.WriteString("};\n")
	name := filepath.Join(dir, "table.c")
	if err := os.WriteFile(name, source.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(dir, "table.o")
	if out, err := exec.CommandContext(t.Context(), compiler, "-c", "-w", "-I", dir, "-o", object, name).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, out)
	}
	file, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if file.Machine != machine {
		t.Fatalf("%s makes code for %v, not %v", compiler, file.Machine, machine)
	}
	symbols, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name != "table" {
			continue
		}
		data, err := file.Sections[s.Section].Data()
		if err != nil {
			t.Fatal(err)
		}
		data = data[s.Value : s.Value+s.Size]
		if len(data) != 8*len(list) {
			t.Fatalf("the table has %d bytes for %d entries", len(data), len(list))
		}
		values := make([]int64, len(list))
		for i := range values {
			values[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
		return values
	}
	t.Fatal("the object file has no table")
	return nil
}
