# Diffusion and decay of a pulse in a closed rod: 50 finite volumes, one step by backward Euler. Length in m, time in s.
[Tensors]
  [edges]
    type = Python
    expr = 'linspace(Scalar(0.0).sub_batch, Scalar(2.0).sub_batch, 51)'
  []
  [centers]
    type = Python
    expr = 'Scalar(0.5 * (edges.data[..., 1:] + edges.data[..., :-1]), sub_batch_ndim=1)'
  []
  [distances]
    type = Python
    expr = 'Scalar(centers.data.diff(), sub_batch_ndim=1)'
  []
  [widths]
    type = Python
    expr = 'Scalar(edges.data.diff(), sub_batch_ndim=1)'
  []
  [pulse]
    type = Python
    expr = 'Scalar(torch.exp(-20.0 * (centers.data - 0.7) ** 2), sub_batch_ndim=1)'
  []
  [cell_diffusivity]
    type = Python
    expr = 'Scalar(0.1 + 0.05 * centers.data, sub_batch_ndim=1)'
  []
  [times]
    type = Python
    expr = 'linspace(Scalar(0.0).dynamic_batch, Scalar(2.0).dynamic_batch, 21)'
  []
[]

[Drivers]
  [driver]
    type = TransientDriver
    model = 'update'
    prescribed_time = 'times'
    ic_Scalar_names = 'c'
    ic_Scalar_values = 'pulse'
  []
[]

[Models]
  [diffusivity]
    type = LinearlyInterpolateToCellEdges
    cell_values = 'cell_diffusivity'
    cell_centers = 'centers'
    cell_edges = 'edges'
    edge_values = 'D'
  []
  [flux]
    type = FiniteVolumeGradient
    u = 'c'
    prefactor = 'D'
    dx = 'distances'
    grad_u = 'J'
  []
  [left]
    type = FiniteVolumeAppendBoundaryCondition
    input = 'J'
    bc_value = 0.0
    side = 'left'
    output = 'J_left'
  []
  [right]
    type = FiniteVolumeAppendBoundaryCondition
    input = 'J_left'
    bc_value = 0.0
    side = 'right'
    output = 'J_closed'
  []
  [divergence]
    type = FiniteVolumeGradient
    u = 'J_closed'
    dx = 'widths'
    grad_u = 'divergence_of_J'
  []
  [decay]
    type = ScalarLinearCombination
    from = 'c'
    to = 'R'
    weights = '-0.2'
  []
  [balance]
    type = ScalarLinearCombination
    from = 'R divergence_of_J'
    to = 'c_rate'
    weights = '1 1'
  []
  [step]
    type = ScalarBackwardEulerTimeIntegration
    variable = 'c'
  []
  [rates]
    type = ComposedModel
    models = 'diffusivity flux left right divergence decay balance step'
  []
[]

[EquationSystems]
  [system]
    type = NonlinearSystem
    model = 'rates'
    unknowns = 'c'
    residuals = 'c_residual'
  []
[]

[Solvers]
  [newton]
    type = Newton
    linear_solver = 'lu'
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
