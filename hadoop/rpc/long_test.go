package rpc

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// A message whose long field is not encoded is, with the bytes of that, as long as it
// says and the same message.
func TestLongFields(t *testing.T) {
	long := bytes.Repeat([]byte("long"), longField)
	unknown := append([]byte(nil), 0xf8, 0x3f, 7) // field 1023
	withUnknown := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum(), Token: long}
	withUnknown.ProtoReflect().SetUnknown(unknown)
	for _, test := range []struct {
		name  string
		m     proto.Message
		alone bool
	}{
		{"alone", &wrapperspb.BytesValue{Value: long}, true},
		{"among others", &rpcpb.RpcSaslProto{
			Version: proto.Uint32(1), State: rpcpb.RpcSaslProto_CHALLENGE.Enum(), Token: long,
			Auths: []*rpcpb.RpcSaslProto_SaslAuth{{Method: proto.String("TOKEN"), Mechanism: proto.String("DIGEST-MD5"), Challenge: []byte("c")}},
		}, false},
		{"beside what is unknown", withUnknown, false},
	} {
		before := proto.Clone(test.m)
		n := proto.Size(test.m)
		l, ok := findLong(test.m, n)
		if !ok || !bytes.Equal(l.value, long) || l.alone != test.alone {
			t.Fatalf("%s: found %t, %d bytes, alone %t", test.name, ok, len(l.value), l.alone)
		}
		b, err := l.appendRest([]byte("front"))
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		b = append(b[len("front"):], l.value...)
		if len(b) != n {
			t.Errorf("%s: %d bytes, %d were announced", test.name, len(b), n)
		}
		again := test.m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(b, again); err != nil || !proto.Equal(again, before) {
			t.Errorf("%s: it is another message (%v)", test.name, err)
		}
		if !proto.Equal(test.m, before) {
			t.Errorf("%s: it has been changed", test.name)
		}
	}
}

// Where the field is short, or not most of the message, the message is encoded as usual.
// One that lacks what is required is refused.
func TestNoLongField(t *testing.T) {
	long := make([]byte, longField)
	for name, m := range map[string]proto.Message{
		"short": &wrapperspb.BytesValue{Value: long[1:]},
		"empty": &wrapperspb.BytesValue{},
		"two": &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_WRAP.Enum(), Token: long,
			Auths: []*rpcpb.RpcSaslProto_SaslAuth{{Method: proto.String("m"), Mechanism: proto.String("m"), Challenge: long}}},
		"text": &wrapperspb.StringValue{Value: string(long)},
	} {
		if _, ok := findLong(m, proto.Size(m)); ok {
			t.Errorf("%s: there is a long field", name)
		}
	}
	m := &rpcpb.RpcSaslProto{Token: long} // without State
	l, ok := findLong(m, proto.Size(m))
	if !ok {
		t.Fatal("no long field")
	}
	if _, err := l.appendRest(nil); err == nil {
		t.Error("a message without a required field was encoded")
	}
}
