# Rates of three variables, as in NEML2's tutorial on compilation: a_rate = (a - a~1) / (t - t~1), and so on.
# `a~1` is the value of `a` one step before.
[Models]
  [rate_a]
    type = ScalarVariableRate
    variable = 'a'
  []
  [rate_b]
    type = ScalarVariableRate
    variable = 'b'
  []
  [rate_c]
    type = ScalarVariableRate
    variable = 'c'
  []
  [eq]
    type = ComposedModel
    models = 'rate_a rate_b rate_c'
  []
[]
