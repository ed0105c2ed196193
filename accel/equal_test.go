package accel_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"plumbline/accel"
	"plumbline/accel/bf16"
	"plumbline/accel/f32"
	"plumbline/accel/f64"
	"plumbline/accel/i8"
)

func fill(r *rand.Rand, n int) ([]float32, []float64, []int8) {
	a, b, c := make([]float32, n), make([]float64, n), make([]int8, n)
	for i := range a {
		b[i] = r.NormFloat64()
		a[i] = float32(b[i])
		c[i] = int8(r.IntN(255) - 127)
	}
	return a, b, c
}

func hash(x any) string {
	h := sha256.New()
	if err := binary.Write(h, binary.LittleEndian, x); err != nil {
		panic(err)
	}
	return string(h.Sum(nil))
}

// Every variant of a product returns the bits of the generic one; amx does so for codes alone.
func TestVariantsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		m, n, k := r.IntN(14), r.IntN(40), r.IntN(50)
		if r.IntN(10) == 0 {
			k += 300
		}
		ld := max(m, n, k) + r.IntN(3)
		sz := ld * (max(min(m, 40), n, k) + 1)
		x, xd, xc := fill(r, sz)
		w, wd, wc := fill(r, sz)
		out := map[string]string{}
		run := func(op, key string, f func() any) {
			accel.Each(op, func(v accel.Variant) {
				if v.Missing != "" || v.Name == "amx" && strings.HasPrefix(op, "bf16") {
					return
				}
				s := hash(f())
				if old, ok := out[op+key]; ok && old != s {
					t.Fatalf("%s %s %s differs m=%d n=%d k=%d", op, key, v.Name, m, n, k)
				}
				out[op+key] = s
			})
		}
		for q := range 8 {
			ta, tb, ac := q&1 != 0, q&2 != 0, q&4 != 0
			run("f32.Gemm", fmt.Sprint(q), func() any {
				c, _, _ := fill(rand.New(rand.NewPCG(3, 3)), sz)
				f32.Gemm(c, ld, x, ld, w, ld, m, n, k, ta, tb, ac)
				return c
			})
			run("f64.Gemm", fmt.Sprint(q), func() any {
				_, c, _ := fill(rand.New(rand.NewPCG(3, 3)), sz)
				f64.Gemm(c, ld, xd, ld, wd, ld, m, n, k, ta, tb, ac)
				return c
			})
		}
		run("i8.Gemm", "", func() any {
			c := make([]int32, sz)
			i8.Gemm(c, ld, xc, ld, wc, ld, m, n, k)
			return c
		})
		run("i8.GemmScaled", "", func() any {
			c := make([]float32, sz)
			i8.GemmScaled(c, ld, xc, ld, x, wc, ld, w, x, m, n, k)
			return c
		})
		run("bf16.W8A16", "", func() any {
			c := make([]float32, sz)
			bf16.W8A16(c, ld, x, ld, wc, ld, w, x, m, n, k)
			return c
		})
		run("bf16.W8A16DX", "", func() any {
			c := make([]float32, sz)
			bf16.W8A16DX(c, ld, x, ld, wc, ld, w, m, n, k, false)
			return c
		})
	}
}
