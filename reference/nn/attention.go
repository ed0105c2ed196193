package nn

import (
	"fmt"

	"plumbline/reference/ad"
)

// Attention returns scaled dot-product attention for the queries q [B, T, H, D] over the keys and values k, v [B, S, K, D],
// as [B, T, H, D]:
//
//	y_t = Σ_s p_ts·v_s,   p_t = softmax over the visible s of scale·⟨q_t, k_s⟩
//
// Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), Equation 1, where scale is 1/√D. With fewer key-value heads than
// heads, G = H/K neighbouring heads share one: head h reads key-value head h/G (Ainslie et al. 2023,
// https://arxiv.org/abs/2305.13245).
//
// mask tells which keys a query sees; it broadcasts to [B, H, T, S], see [Visible.Mask]. What is not seen has the weight 0
// and the gradient 0. (Its values must be finite all the same: 0·NaN is NaN, here as in every framework.) A query that sees
// no key gives 0, see [Softmax].
//
// It panics if the shapes do not fit.
func Attention(q, k, v *ad.Var, mask ad.Mask, scale float64) *ad.Var {
	qs, ks := q.Shape(), k.Shape()
	if len(qs) != 4 || len(ks) != 4 || qs[0] != ks[0] || qs[3] != ks[3] || ks[2] < 1 || qs[2]%ks[2] != 0 {
		panic(fmt.Sprintf("nn: attention: queries of shape %v, keys of %v", qs, ks))
	}
	vs := v.Shape()
	if len(vs) != 4 || vs[0] != ks[0] || vs[1] != ks[1] || vs[2] != ks[2] {
		panic(fmt.Sprintf("nn: attention: keys of shape %v, values of %v", ks, vs))
	}
	b, t, h, d := qs[0], qs[1], qs[2], qs[3]
	s, kv := ks[1], ks[2]
	g := h / kv

	// The G heads of a group lie one below the other, so that their keys and values need no copies.
	q = ad.Reshape(ad.Permute(q, 0, 2, 1, 3), b, kv, g*t, d)
	k = ad.Permute(k, 0, 2, 1, 3)
	v = ad.Permute(v, 0, 2, 1, 3)
	scores := ad.Reshape(ad.Scale(ad.MatMul(q, k, false, true), scale), b, h, t, s)
	p := ad.Reshape(Softmax(scores, mask), b, kv, g*t, s)
	y := ad.Reshape(ad.MatMul(p, v, false, false), b, h, t, vs[3])
	return ad.Permute(y, 0, 2, 1, 3)
}

// Heads splits the channels of x [B, T, H·D] into heads [B, T, H, D]; head h has the channels from h·D on.
func Heads(x *ad.Var, heads int) *ad.Var {
	s := x.Shape()
	if len(s) != 3 || heads < 1 || s[2]%heads != 0 {
		panic(fmt.Sprintf("nn: heads: %d heads of shape %v", heads, s))
	}
	return ad.Reshape(x, s[0], s[1], heads, s[2]/heads)
}

// Join is the inverse of [Heads].
func Join(x *ad.Var) *ad.Var {
	s := x.Shape()
	if len(s) != 4 {
		panic(fmt.Sprintf("nn: join: heads of shape %v", s))
	}
	return ad.Reshape(x, s[0], s[1], s[2]*s[3])
}
