# A Perzyna solid with linear isotropic hardening, one step by backward Euler: seven unknowns. Stress in MPa, time in s.
[Models]
  [mises]
    type = SR2Invariant
    invariant_type = 'VONMISES'
    tensor = 'stress'
    invariant = 'effective_stress'
  []
  [hardening]
    type = LinearIsotropicHardening
    hardening_modulus = 1500
  []
  [yielding]
    type = YieldFunction
    yield_stress = 120
    isotropic_hardening = 'isotropic_hardening'
  []
  [surface]
    type = ComposedModel
    models = 'mises yielding'
  []
  [direction]
    type = Normality
    model = 'surface'
    function = 'yield_function'
    from = 'stress isotropic_hardening'
    to = 'flow_direction isotropic_hardening_direction'
  []
  [rate]
    type = PerzynaPlasticFlowRate
    reference_stress = 200
    exponent = 2
  []
  [plastic]
    type = AssociativePlasticFlow
  []
  [plastic_rate]
    type = AssociativeIsotropicPlasticHardening
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
  [stress_step]
    type = SR2BackwardEulerTimeIntegration
    variable = 'stress'
  []
  [ep_step]
    type = ScalarBackwardEulerTimeIntegration
    variable = 'equivalent_plastic_strain'
  []
  [rates]
    type = ComposedModel
    models = 'mises hardening yielding direction rate plastic plastic_rate total elastic hooke stress_step ep_step'
  []
[]

[EquationSystems]
  [system]
    type = NonlinearSystem
    model = 'rates'
    unknowns = 'stress equivalent_plastic_strain'
    residuals = 'stress_residual equivalent_plastic_strain_residual'
  []
[]

[Solvers]
  [newton]
    type = Newton
    linear_solver = 'lu'
    abs_tol = 1e-10
    rel_tol = 1e-8
  []
  [lu]
    type = DenseLU
  []
[]

[Models]
  [update]
    type = ImplicitUpdate
    equation_system = 'system'
    solver = 'newton'
  []
[]
