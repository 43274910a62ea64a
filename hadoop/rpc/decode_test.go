package rpc

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// Whatever comes, a message with a long field is decoded to what proto.Unmarshal makes
// of it.
func checkDecode(t *testing.T, b []byte, fresh func() proto.Message) {
	t.Helper()
	want := fresh()
	failed := proto.Unmarshal(b, want)
	for name, decode := range map[string]func([]byte, proto.Message) error{
		"lent": func(b []byte, m proto.Message) error { _, err := unmarshalLent(b, m, lentField); return err },
		"over": unmarshalOver,
	} {
		got := fresh()
		err := decode(b, got)
		if (err == nil) != (failed == nil) || err == nil && !proto.Equal(got, want) {
			t.Errorf("%s: %d bytes: %v, proto.Unmarshal: %v", name, len(b), err, failed)
		}
	}
}

func TestDecodeLongFields(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789"), longField/10+1)
	marshal := func(m proto.Message) []byte {
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	newBlob := func() proto.Message { return &blob{} }
	newSASL := func() proto.Message { return &rpcpb.RpcSaslProto{} }
	one := marshal(&blob{Value: long})
	checkDecode(t, one, newBlob)
	checkDecode(t, marshal(&blob{Value: long[:lentField]}), newBlob)
	checkDecode(t, append(one, one...), newBlob)
	checkDecode(t, append(one, 0x12, 3, 'a', 'b', 'c'), newBlob) // an unknown field behind it
	checkDecode(t, one[:len(one)-1], newBlob)
	checkDecode(t, append(one, 0xff), newBlob)
	whole := &rpcpb.RpcSaslProto{Version: proto.Uint32(7), State: rpcpb.RpcSaslProto_INITIATE.Enum(), Token: long, Auths: []*rpcpb.RpcSaslProto_SaslAuth{
		{Method: proto.String("m"), Mechanism: proto.String("n"), Challenge: long},
	}}
	checkDecode(t, marshal(whole), newSASL)
	whole.State = nil // a required field
	checkDecode(t, marshal(whole), newSASL)
	whole.Token = nil
	checkDecode(t, marshal(whole), newSASL)

	var m blob
	if refers, err := unmarshalLent(one, &m, longField); err != nil || !refers || &m.Value[0] != &one[len(one)-len(long)] || cap(m.Value) != len(long) {
		t.Errorf("a long field does not lie where it came, or its capacity is %d: %v", cap(m.Value), err)
	}
	for n, want := range map[int]bool{100: false, lentField - 1: false, lentField: true} {
		if refers, err := unmarshalLent(marshal(&blob{Value: long[:n]}), &m, lentField); err != nil || refers != want || !bytes.Equal(m.Value, long[:n]) {
			t.Errorf("a field of %d bytes refers to what it came in: %t, %v, want %t", n, refers, err, want)
		}
	}
	var incomplete rpcpb.RpcSaslProto // it lacks its state
	if refers, err := unmarshalLent(marshal(&rpcpb.RpcSaslProto{Token: long}), &incomplete, lentField); err == nil || refers || incomplete.Token != nil {
		t.Errorf("an incomplete message refers to what it came in: %v, %v, %d bytes", refers, err, len(incomplete.Token))
	}
	half := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_INITIATE.Enum(), Token: long[:lentField], Auths: []*rpcpb.RpcSaslProto_SaslAuth{
		{Method: proto.String("m"), Mechanism: proto.String("n"), Challenge: long[:2*lentField]},
	}}
	var rest rpcpb.RpcSaslProto
	if refers, err := unmarshalLent(marshal(half), &rest, lentField); err != nil || refers || !proto.Equal(&rest, half) {
		t.Errorf("a field of less than half of its message: %v, %v", refers, err)
	}
	m.Value = make([]byte, 2*len(long))
	memory := &m.Value[0]
	if err := unmarshalOver(one, &m); err != nil || &m.Value[0] != memory || !bytes.Equal(m.Value, long) {
		t.Errorf("memory that was there is not used: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x08, 7, 0x10, 2}, 40_000, []byte{0x12, 1, 'x'})
	f.Fuzz(func(t *testing.T, before []byte, n int, after []byte) {
		if n < 0 || n > 100_000 {
			return
		}
		long, err := proto.Marshal(&blob{Value: make([]byte, n)})
		if err != nil {
			t.Fatal(err)
		}
		b := append(append(append([]byte(nil), before...), long...), after...)
		checkDecode(t, b, func() proto.Message { return &blob{} })
		checkDecode(t, b, func() proto.Message { return &rpcpb.RpcSaslProto{} })
	})
}
