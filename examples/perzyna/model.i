# The residual of a Perzyna solid without hardening, for a solver that has a Newton iteration of its own:
#   torchferry export model.i --model residual --derivative 'stress_residual:stress' -o perzyna.pt
# Stress in MPa, time in s.
[Models]
  [mises]
    type = SR2Invariant
    invariant_type = 'VONMISES'
    tensor = 'stress'
    invariant = 'effective_stress'
  []
  [yielding]
    type = YieldFunction
    yield_stress = 180
  []
  [surface]
    type = ComposedModel
    models = 'mises yielding'
  []
  [direction]
    type = Normality
    model = 'surface'
    function = 'yield_function'
    from = 'stress'
    to = 'flow_direction'
  []
  [rate]
    type = PerzynaPlasticFlowRate
    reference_stress = 250
    exponent = 3
  []
  [plastic]
    type = AssociativePlasticFlow
  []
  [total]
    type = SR2VariableRate
    variable = 'strain'
  []
  [elastic]
    type = SR2LinearCombination
    from = 'strain_rate plastic_strain_rate'
    to = 'elastic_strain_rate'
    weights = '1 -1'
  []
  [hooke]
    type = LinearIsotropicElasticity
    coefficients = '210000 0.3'
    coefficient_types = 'YOUNGS_MODULUS POISSONS_RATIO'
    strain = 'elastic_strain'
    rate_form = true
  []
  [integration]
    type = SR2BackwardEulerTimeIntegration
    variable = 'stress'
  []
  [residual]
    type = ComposedModel
    models = 'mises yielding direction rate plastic total elastic hooke integration'
  []
[]
