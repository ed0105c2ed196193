package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPassK(t *testing.T) {
	r, group := []float64{1, 5, 4, 5, 0, 2}, []int{0, 1, 0, 1, 0, 1}
	got, err := PassKAdvantage(nil, r, group, false, 0)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0, 3, 0, 0, 0}, got) // a tie for the best leaves nothing to the first of them
	got, err = PassKAdvantage(nil, []float64{1, 3}, []int{1, 1}, false, 0)
	require.NoError(t, err)
	require.Equal(t, []float64{0, 2}, got)
	std := math.Sqrt((4./9 + 49./9 + 25./9) / 2) // of 1, 4, 0
	got, err = PassKAdvantage(r, r, group, true, .5)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{0, 0, 3 / (std + .5), 0, 0, 0}, 1e-15))
	_, err = PassKAdvantage(nil, []float64{1, 2, 3}, []int{0, 0, 2}, true, 0)
	require.ErrorIs(t, err, ErrGroupOfOne)
}

func TestOPO(t *testing.T) {
	r, length := []float64{1, 3, 7}, []float64{3, 1, 2}
	require.Equal(t, []float64{-.5, 1.5, 7}, OPOAdvantage(nil, r, length, []int{0, 0, 2}))
	rapid.Check(t, func(t *rapid.T) { // the length-weighted sum of a group is 0; equal lengths give r − mean
		r, group, _ := drawGroups(t)
		length := make([]float64, len(r))
		for i := range length {
			length[i] = float64(rapid.IntRange(1, 9).Draw(t, "len"))
		}
		adv := OPOAdvantage(nil, r, length, group)
		sum := make([]float64, len(r))
		for i, a := range adv {
			sum[group[i]] += a * length[i]
			length[i] = 3
		}
		for _, s := range sum {
			if !(math.Abs(s) <= 1e-9) {
				t.Fatalf("Σ len·A = %v", s)
			}
		}
		if err := off(OPOAdvantage(nil, r, length, group), rightGroup(r, group, GroupOptions{}), 1e-9); err != nil {
			t.Fatal(err)
		}
	})
}

func TestGPG(t *testing.T) {
	r, group := []float64{1, 0, 0, 2, 0}, []int{0, 0, 0, 1, 2}
	require.NoError(t, off(GPGAdvantage(nil, r, group, 2), []float64{5. / 6, -5. / 12, -5. / 12, 2.5, 0}, 1e-15)) // N/N₊/norm = 5/2/2
	require.Equal(t, []float64{2, -2}, GPGAdvantage(nil, []float64{2, 0}, nil, 1))                                // N/N₊ = 2/1
	require.Equal(t, []float64{0, 0}, GPGAdvantage(nil, []float64{0, 0}, nil, 1))
}

func TestReMax(t *testing.T) {
	mask := []bool{true, false, true, false}
	adv, ret := ReMaxAdvantage(nil, nil, []float64{1, nan, 2, nan}, []float64{10}, mask, 1, 4)
	require.Equal(t, []float64{3, 2, 2, 0}, ret)
	require.Equal(t, []float64{-7, 2, -8, 0}, adv)
}

func TestBroadcast(t *testing.T) {
	require.Equal(t, []float64{3, 0, 0, 5}, Broadcast(nil, []float64{3, 5}, []bool{true, false, false, true}, 2, 2))
	require.Equal(t, []float64{0, 7}, Broadcast(nil, []float64{nan, 7}, []bool{false, true}, 2, 1))
	require.Panics(t, func() { Broadcast(nil, []float64{1}, nil, 2, 2) })
}

// TestOptimalTokenBaseline compares with the formula written the other way round, column by column and without sharing any
// sum, and checks what makes the baseline optimal: within a column it is the b of least Σ W·(G − b)².
func TestOptimalTokenBaseline(t *testing.T) {
	slow := func(reward, old, sq []float64, mask []bool, group []int, rows, cols int) []float64 {
		adv := make([]float64, len(reward))
		length := func(i int) (n int) {
			for s := range cols {
				if mask[i*cols+s] {
					n++
				}
			}
			return n
		}
		at := func(i, s int) (g, w float64) {
			for u := range cols {
				if k := i*cols + u; mask[k] && u >= s {
					g += reward[k]
				}
				if k := i*cols + u; mask[k] && u <= s {
					w += 1 - 2*math.Exp(old[k]) + sq[k]
				}
			}
			return g, w
		}
		for i := range rows {
			for s := range cols {
				if !mask[i*cols+s] {
					continue
				}
				var sum, weight float64
				size, second := 0, -1
				for j := range rows {
					if group[j] != group[i] {
						continue
					}
					size++
					if g, w := at(j, s); mask[j*cols+s] {
						sum += g * w
						weight += w
					}
					if j != i {
						second = max(second, length(j))
					}
				}
				g, _ := at(i, s)
				adv[i*cols+s] = g
				if alone := length(i) > second && s >= second; size > 1 && !alone {
					adv[i*cols+s] -= sum / (weight + 1e-8)
				}
			}
		}
		return adv
	}
	rapid.Check(t, func(t *rapid.T) {
		reward, mask, rows, cols := drawBatch(t, 1)
		old, sq := make([]float64, len(reward)), make([]float64, len(reward))
		for k := range old {
			p := rapid.Float64Range(.01, 1).Draw(t, "π")
			old[k], sq[k] = math.Log(p), p*p+.2*(1-p)*(1-p)
		}
		group := make([]int, rows)
		for i := range group {
			group[i] = rapid.IntRange(0, rows-1).Draw(t, "group")
		}
		got := OptimalTokenBaseline(nil, poison(reward, mask), poison(old, mask), poison(sq, mask), nil, mask, group, rows, cols, 1e-8)
		if err := off(got, slow(reward, old, sq, mask, group, rows, cols), 1e-9); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReinforcePlusPlus(t *testing.T) {
	reward, mask := []float64{0, nan, 2, 1, 3, nan}, []bool{true, false, true, true, true, false}
	o := own
	o.Scope = ScopeNone
	adv, ret, err := ReinforcePlusPlus(nil, nil, reward, mask, 2, 3, ReturnToGo, .5, HoleCarry, o)
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2, 2, 2.5, 3, 0}, ret)
	require.Equal(t, []float64{1, 0, 2, 2.5, 3, 0}, adv)
	_, ret, err = ReinforcePlusPlus(nil, nil, reward, mask, 2, 3, BroadcastReward, .5, HoleCarry, o)
	require.NoError(t, err)
	require.Equal(t, []float64{2, 0, 2, 4, 4, 0}, ret)
	adv, _, err = ReinforcePlusPlus(nil, nil, reward, mask, 2, 3, BroadcastReward, 1, HoleCarry, own)
	require.NoError(t, err)
	require.NoError(t, off(adv, []float64{-1, 0, -1, 1, 1, 0}, 1e-7))
	o = own
	o.Var.Empty = EmptyError
	_, _, err = ReinforcePlusPlus(nil, nil, reward, make([]bool, 6), 2, 3, BroadcastReward, 1, HoleCarry, o)
	require.ErrorIs(t, err, ErrEmptyMask)
}
