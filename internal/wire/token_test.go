package wire

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

func testRing(t testing.TB, current int32, ids ...int32) *Keyring {
	t.Helper()
	keys := map[int32][]byte{}
	for _, id := range ids {
		keys[id] = bytes.Repeat([]byte{byte(id)}, 32)
	}
	k, err := NewKeyring(current, keys)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testToken() *workerv1.TaskToken {
	return &workerv1.TaskToken{Namespace: "shop", Shard: 517, Run: bytes.Repeat([]byte{7}, 16), SagaId: "order-42", Step: "reserve", Direction: do,
		Generation: 1, Attempt: 2, Activity: "inventory.reserve", ExpiresUs: 1_000_000, InputDigest: bytes.Repeat([]byte{9}, 8)}
}

func sign(t testing.TB, k *Keyring, tok *workerv1.TaskToken) []byte {
	t.Helper()
	b, err := k.Sign(tok)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTokenGoesBackAndForth(t *testing.T) {
	k := testRing(t, 3, 3)
	tok := testToken()
	b := sign(t, k, tok)
	got, err := k.Open(b, 999_999)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tok, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if shard, ok := TokenShard(b); !ok || shard != 517 {
		t.Error(shard, ok)
	}
	if again := sign(t, k, testToken()); !bytes.Equal(b, again) {
		t.Error("the same attempt has two tokens")
	}
	// On the microsecond it expires, it is expired, but known to be genuine.
	got, err = k.Open(b, 1_000_000)
	if !errors.Is(err, ErrTokenExpired) || got.GetSagaId() != "order-42" {
		t.Errorf("%v, %v", got, err)
	}
}

// Every value of every byte, and every length: none but the token itself is accepted.
func TestNoChangedTokenIsAccepted(t *testing.T) {
	k := testRing(t, 3, 3, 4)
	tries := 0
	for _, namespace := range []string{"shop", "bank", "a-longer-name"} {
		tok := testToken()
		tok.Namespace = namespace
		tries += changeEveryByte(t, k, sign(t, k, tok))
	}
	if tries < 90_000 {
		t.Errorf("only %d changed tokens were tried", tries)
	}
}

func changeEveryByte(t *testing.T, k *Keyring, b []byte) (tries int) {
	for i := range b {
		for v := range 256 {
			if byte(v) == b[i] {
				continue
			}
			c := bytes.Clone(b)
			c[i] = byte(v)
			tries++
			if got, err := k.Open(c, 0); err == nil || got != nil {
				t.Fatalf("byte %d set to %d: accepted as %v, %v", i, v, got, err)
			}
		}
		if got, err := k.Open(b[:i], 0); err == nil || got != nil {
			t.Fatalf("cut to %d bytes: accepted", i)
		}
		if got, err := k.Open(append(bytes.Clone(b[:i]), b[i+1:]...), 0); err == nil || got != nil {
			t.Fatalf("without byte %d: accepted", i)
		}
	}
	for v := range 256 {
		for _, c := range [][]byte{append(bytes.Clone(b), byte(v)), append([]byte{byte(v)}, b...)} {
			if _, err := k.Open(c, 0); err == nil {
				t.Fatalf("with a byte more: accepted")
			}
		}
	}
	return tries
}

// Every field of one token put into another one that keeps its code, in every combination of two real tokens.
func TestNoSwappedFieldIsAccepted(t *testing.T) {
	k := testRing(t, 3, 3)
	a := testToken()
	other := &workerv1.TaskToken{Namespace: "bank", Shard: 2, Run: bytes.Repeat([]byte{8}, 16), SagaId: "order-43", Step: "pay", Item: "i", Direction: undo,
		Generation: 2, Attempt: 3, Activity: "payments.charge", ExpiresUs: 2_000_000, InputDigest: bytes.Repeat([]byte{1}, 8)}
	tokenA, tokenB := sign(t, k, a), sign(t, k, other)
	fields := a.ProtoReflect().Descriptor().Fields()
	for set := 1; set < 1<<fields.Len(); set++ {
		c := proto.Clone(a).(*workerv1.TaskToken)
		for i := range fields.Len() {
			if set&(1<<i) != 0 {
				c.ProtoReflect().Set(fields.Get(i), other.ProtoReflect().Get(fields.Get(i)))
			}
		}
		if proto.Equal(c, a) || proto.Equal(c, other) {
			continue // the key id is the same in both
		}
		body, err := proto.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, head := range [][]byte{tokenA[:3], tokenB[:3]} {
			for _, code := range [][]byte{tokenA[len(tokenA)-32:], tokenB[len(tokenB)-32:]} {
				if _, err := k.Open(bytes.Join([][]byte{head, body, code}, nil), 0); err == nil {
					t.Fatalf("fields %b: accepted", set)
				}
			}
		}
	}
}

func TestTokenOfAnotherNamespaceOrRing(t *testing.T) {
	k := testRing(t, 3, 3)
	// The code that a ring makes for one namespace is no good for the same bytes in another: keys are derived.
	if pa, pb := k.mac(nil, []byte("x"), derivedID{3, "shop"}), k.mac(nil, []byte("x"), derivedID{3, "bank"}); bytes.Equal(pa, pb) {
		t.Error("two namespaces share a key")
	}
	stranger, err := NewKeyring(3, map[int32][]byte{3: bytes.Repeat([]byte{99}, 32)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(sign(t, stranger, testToken()), 0); !errors.Is(err, ErrTokenForged) {
		t.Error(err)
	}
	bad := testToken()
	bad.Namespace = "*"
	if _, err := k.Open(sign(t, k, bad), 0); !errors.Is(err, ErrTokenMalformed) {
		t.Error(err)
	}
}

func TestTokenKeyRotation(t *testing.T) {
	before, during, after := testRing(t, 1, 1), testRing(t, 2, 1, 2), testRing(t, 2, 2)
	old, fresh := sign(t, before, testToken()), sign(t, during, testToken())
	for _, b := range [][]byte{old, fresh} {
		if _, err := during.Open(b, 0); err != nil {
			t.Error(err)
		}
	}
	if _, err := after.Open(old, 0); !errors.Is(err, ErrTokenKey) {
		t.Error(err)
	}
	if _, err := after.Open(fresh, 0); err != nil {
		t.Error(err)
	}
	// The old token can't be passed off as one by the new key.
	relabelled := testToken()
	relabelled.KeyId = 2
	body, _ := proto.Marshal(relabelled)
	if _, err := during.Open(bytes.Join([][]byte{old[:3], body, old[len(old)-32:]}, nil), 0); !errors.Is(err, ErrTokenForged) {
		t.Error(err)
	}
}

func TestKeyringRefuses(t *testing.T) {
	if _, err := NewKeyring(1, map[int32][]byte{1: make([]byte, 31)}); err == nil {
		t.Error("a short key is taken")
	}
	if _, err := NewKeyring(2, map[int32][]byte{1: make([]byte, 32)}); err == nil {
		t.Error("an absent current key is taken")
	}
	k := testRing(t, 1, 1)
	for _, shard := range []int32{-1, 65536} {
		if _, err := k.Sign(&workerv1.TaskToken{Namespace: "n", Shard: shard}); err == nil {
			t.Errorf("shard %d is taken", shard)
		}
	}
	if _, err := k.Sign(&workerv1.TaskToken{Namespace: "n", Item: string(make([]byte, 2000))}); err == nil {
		t.Error("a token of 2,000 bytes is made")
	}
	for _, b := range [][]byte{nil, {}, {1}, make([]byte, 35), make([]byte, 36), make([]byte, 5000)} {
		if _, err := k.Open(b, 0); !errors.Is(err, ErrTokenMalformed) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
		if _, ok := TokenShard(b); ok {
			t.Errorf("%d bytes are said to be a token", len(b))
		}
	}
}

func TestTokenProperty(t *testing.T) {
	k := testRing(t, 1, 1)
	rapid.Check(t, func(t *rapid.T) {
		tok := &workerv1.TaskToken{
			Namespace: rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,10}`).Draw(t, "namespace"), Shard: rapid.Int32Range(0, 65535).Draw(t, "shard"),
			Run: rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "run"), SagaId: rapid.StringN(0, 50, 255).Draw(t, "id"), Step: rapid.String().Draw(t, "step"),
			Attempt: rapid.Int32().Draw(t, "attempt"), ExpiresUs: rapid.Int64Min(1).Draw(t, "expires"),
		}
		b, err := k.Sign(tok)
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.Open(b, tok.ExpiresUs-1)
		if err != nil || !proto.Equal(got, tok) {
			t.Fatalf("%v, %v", got, err)
		}
		if _, err := k.Open(b, tok.ExpiresUs); !errors.Is(err, ErrTokenExpired) {
			t.Fatal(err)
		}
	})
}

func FuzzOpen(f *testing.F) {
	k := testRing(f, 1, 1, 2)
	good := sign(f, k, testToken())
	f.Add(good)
	f.Add(good[:40])
	f.Add(bytes.Repeat([]byte{1}, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := k.Open(b, 0)
		if err == nil && !bytes.Equal(b, good) {
			t.Fatalf("accepted %x", b)
		}
		if err != nil && got != nil {
			t.Fatal("an unauthenticated token is returned")
		}
		TokenShard(b)
	})
}

func BenchmarkToken(b *testing.B) {
	k := testRing(b, 1, 1)
	tok := testToken()
	b.Run("sign", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = k.Sign(tok)
		}
	})
	signed := sign(b, k, tok)
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = k.Open(signed, 0)
		}
	})
}

func ExampleQueue() {
	q := Queue{Namespace: "shop", Activity: "inventory.reserve", Direction: workerv1.Direction_DIRECTION_UNDO}
	subject, _ := q.TaskSubject()
	consumer, _ := q.Consumer()
	fmt.Println(subject)
	fmt.Println(consumer)
	// Output:
	// sagad.task.shop.undo.inventory.reserve
	// shop=undo=inventory~reserve
}

func TestTokenAttempt(t *testing.T) {
	ring, err := NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	run := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	token, err := ring.Sign(&workerv1.TaskToken{Namespace: "n", Run: run, Step: "pay", Item: "a b", Direction: undo, Generation: 2, Attempt: 3})
	if err != nil {
		t.Fatal(err)
	}
	key, n, ok := TokenAttempt(token)
	if want := IdempotencyKey("01020304-0506-0708-090a-0b0c0d0e0f10", "pay", "a b", undo, 2); !ok || key != want || n != 3 {
		t.Errorf("%s %d %v", key, n, ok)
	}
	for _, bad := range [][]byte{nil, token[:35], append([]byte{2}, token[1:]...), make([]byte, TokenBytesMax+1)} {
		if key, n, ok := TokenAttempt(bad); ok {
			t.Errorf("%x is of %s %d", bad, key, n)
		}
	}
}
