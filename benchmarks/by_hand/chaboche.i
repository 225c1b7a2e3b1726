# A Chaboche solid: linear isotropic hardening and two back stresses that recover, one step by backward Euler. A cyclic
# tension test drives it. Stress in MPa, time in s.
[Tensors]
  [times]
    type = Python
    expr = 'Scalar(torch.linspace(0.0, 40.0, 81, dtype=torch.float64))'
  []
  [strains]
    type = Python
    expr = 'SR2(SR2.fill(8e-3, -3e-3, -3e-3, 0.0, 0.0, 1e-3).data * torch.sin(torch.linspace(0.0, 9.0, 81, dtype=torch.float64)).unsqueeze(-1))'
  []
[]

[Drivers]
  [driver]
    type = TransientDriver
    model = 'update'
    prescribed_time = 'times'
    prescribed_SR2_names = 'strain'
    prescribed_SR2_values = 'strains'
  []
[]

[Models]
  [hardening]
    type = LinearIsotropicHardening
    hardening_modulus = 400
  []
  [back]
    type = SR2LinearCombination
    from = 'X1 X2'
    to = 'back_stress'
  []
  [over]
    type = SR2LinearCombination
    from = 'stress back_stress'
    to = 'overstress'
    weights = '1 -1'
  []
  [mises]
    type = SR2Invariant
    invariant_type = 'VONMISES'
    tensor = 'overstress'
    invariant = 'effective_stress'
  []
  [yielding]
    type = YieldFunction
    yield_stress = 150
    isotropic_hardening = 'isotropic_hardening'
  []
  [surface]
    type = ComposedModel
    models = 'over mises yielding'
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
    reference_stress = 180
    exponent = 4
  []
  [plastic]
    type = AssociativePlasticFlow
  []
  [plastic_rate]
    type = AssociativeIsotropicPlasticHardening
  []
  [X1_rate]
    type = ChabochePlasticHardening
    back_stress = 'X1'
    C = 30000
    g = 300
    A = 1e-9
    a = 1.5
  []
  [X2_rate]
    type = ChabochePlasticHardening
    back_stress = 'X2'
    C = 2500
    g = 20
    A = 1e-10
    a = 2.5
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
    coefficients = '195000 0.3'
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
  [X1_step]
    type = SR2BackwardEulerTimeIntegration
    variable = 'X1'
  []
  [X2_step]
    type = SR2BackwardEulerTimeIntegration
    variable = 'X2'
  []
  [rates]
    type = ComposedModel
    models = 'hardening back over mises yielding direction rate plastic plastic_rate X1_rate X2_rate total elastic hooke stress_step ep_step X1_step X2_step'
  []
[]

[EquationSystems]
  [system]
    type = NonlinearSystem
    model = 'rates'
    unknowns = 'stress equivalent_plastic_strain X1 X2'
    residuals = 'stress_residual equivalent_plastic_strain_residual X1_residual X2_residual'
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
