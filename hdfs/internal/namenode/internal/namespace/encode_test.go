package namespace

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// fill sets fields of a message, of a oneof the one that is named, if sets says so. It knows all that a
// message may have, those added later too.
func fill(m protoreflect.Message, oneof protoreflect.Name, rng *rand.Rand, sets func() bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if in := f.ContainingOneof(); in != nil && f.Name() != oneof || in == nil && !sets() {
			continue
		}
		value := func() protoreflect.Value {
			switch f.Kind() {
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(rng.IntN(2) == 0)
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(strings.Repeat("é", rng.IntN(3)*rng.IntN(100)))
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes(make([]byte, rng.IntN(20)))
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(rng.Uint32())
			case protoreflect.Sint32Kind:
				return protoreflect.ValueOfInt32(int32(rng.Uint32()))
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(int64(rng.Uint64()))
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(rng.Uint64() >> rng.IntN(64))
			}
			panic(f.FullName())
		}
		switch {
		case f.IsList():
			for range rng.IntN(4) {
				m.Mutable(f).List().Append(value())
			}
		case f.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(f).Message(), "", rng, sets)
		default:
			m.Set(f, value())
		}
	}
}

// What Encode writes is read as the entry that it was, whatever fields are set.
func TestEncode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, op := range []protoreflect.Name{"mkdirs", "create", "rename", "delete", "complete", "add_block", "datanode_gone"} {
		for i := range 500 {
			e := &nspb.Entry{}
			share := rng.Float64()
			if i%10 == 0 {
				share = math.Inf(1)
			}
			fill(e.ProtoReflect(), op, rng, func() bool { return rng.Float64() < share })
			if i%3 > 0 {
				e.Limits = nil
			}
			data, err := Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			got := &nspb.Entry{}
			if err := proto.Unmarshal(data, got); err != nil || !proto.Equal(got, e) {
				t.Fatalf("%s: %v became %v, %v", op, e, got, err)
			}
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	e := &nspb.Entry{
		TimeMs: proto.Int64(1_700_000_000_000), ClientId: make([]byte, 16), CallId: proto.Int32(12345),
		Caller: &nspb.Caller{User: proto.String("root"), Groups: []string{"root"}, Superuser: proto.Bool(true)},
		Op:     &nspb.Entry_Delete{Delete: &nspb.Delete{Path: proto.String("/round1/client17/f345"), Recursive: proto.Bool(false)}},
	}
	for _, encode := range []struct {
		name string
		f    func(*nspb.Entry) ([]byte, error)
	}{{"own", Encode}, {"protobuf", func(e *nspb.Entry) ([]byte, error) { return proto.Marshal(e) }}} {
		b.Run(encode.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encode.f(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
