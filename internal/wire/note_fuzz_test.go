package wire

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	peerv1 "github.com/sagad/sagad/proto/gen/sagad/peer/v1"
)

// FuzzUnseal: no message is taken for a node's but one that a node made.
func FuzzUnseal(f *testing.F) {
	k := testRing(f, 1, 1, 2)
	good, err := k.Seal(&peerv1.Notes{Notes: []*peerv1.Note{{}, {}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0x0a}, 50))
	f.Add(sign(f, k, testToken())) // a task token is no message
	sealed := new(peerv1.SealedNotes)
	if err := proto.Unmarshal(good, sealed); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		notes, err := k.Unseal(b)
		if (err == nil) != (notes != nil) {
			t.Fatalf("%v, %v", notes, err)
		}
		if err != nil {
			return
		}
		// Other bytes may say the same: then they carry the same code.
		x := new(peerv1.SealedNotes)
		if proto.Unmarshal(b, x) != nil || !bytes.Equal(x.Notes, sealed.Notes) || !bytes.Equal(x.Mac, sealed.Mac) {
			t.Fatalf("accepted: %x", b)
		}
	})
}
