package trainer

// run is one step of the trainer. What a stage computes is a field here, rows×cols if nothing else is said.
type run[F float32 | float64] struct {
	Config
	unit[F]
	*world
	o     settings
	plant string
	data  string // the bug whose data these are

	mask     []bool // as built, and dumped
	truth    []bool // as it should be
	lossMask []bool // as the policy loss takes it
	inputIDs []int  // rows×(width+cols)
	attended []bool // the same
	promptOf []int  // prompt_len

	lp         [policies][]F
	rawLogits  []F // rows×cols×vocab
	entropy    []F
	piSquared  []F
	kl, dkl    []F // the estimate as used, and the derivative of the bare one
	bare       []F // the estimate without a ratio
	rewards    []F // rows×functions, as dumped
	sequence   []F // rewards of the rows after rules and clips
	token      []F // token rewards
	values0    []F
	values1    []F
	adv        []F
	rowAdv     []F   // advantages of rows, if they are that
	groups     []int // as dumped
	returns    []F
	ratio      []F
	share      []F // ∂ ln ρ/∂lp of the token
	isw        []F
	policyLoss []F // ℓ of the policy, weighted
	dratio     []F // ∂ℓ/∂ρ
	direct     []F // ∂ℓ/∂lp that does not pass the ratio
	rowLoss    []F // gmpo
	valueCells []F
	dvalue     []F
	weight     []F // of rows in the policy loss
	valueW     []F
	pg, klLoss []F // of files
	vf, ent    []F
	loss       []F
	dlogp      []F
	dvalues    []F
	bias       []F // gradient of a bias of the logits
	scalars    [][]named
}

type named struct {
	name  string
	value float64
}

func (r *run[F]) cells() int { return r.rows * r.cols }
