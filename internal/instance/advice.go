package instance

// Advice is the recommended number of instances for a role of a model.
type Advice struct {
	Model     string  `json:"model"`
	Role      Role    `json:"role"`
	Instances float64 `json:"instances"` // usable; one in both roles counts half in each
	Pressure  float64 `json:"pressure"`  // in units of the target; above 1 the target is missed
	Fewer     float64 `json:"pressure_with_one_fewer"`
	Wanted    int     `json:"wanted"`
	Known     bool    `json:"known"` // whether enough requests were measured; if not, Wanted is Instances
	Reason    string  `json:"reason"`
}
